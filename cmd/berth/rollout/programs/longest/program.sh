#!/usr/bin/env bash
# Prints the longest of its arguments; of equals, the first.
longest=
for word in "$@"; do
  if [[ $word > $longest ]]; then
    longest=$word
  fi
done
echo "$longest"
