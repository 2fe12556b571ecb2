#!/usr/bin/env bash
# Prints the sum of its arguments.
total=0
for number in "$@"; do
  total=$((number))
done
echo "$total"
