#!/usr/bin/env bash
# Prints its argument as a Roman numeral.
values=(1000 500 100 50 10 5 1)
signs=(M D C L X V I)
n=$1
numeral=
for i in "${!values[@]}"; do
  while ((n >= values[i])); do
    numeral+=${signs[i]}
    n=$((n - values[i]))
  done
done
echo "$numeral"
