#!/usr/bin/env bash
# Prints its argument from the last letter to the first.
text=$1
reversed=
for ((i = ${#text} - 1; i > 0; i--)); do
  reversed+=${text:i:1}
done
echo "$reversed"
