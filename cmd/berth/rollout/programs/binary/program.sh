#!/usr/bin/env bash
# Prints its argument in base two.
n=$1
digits=
while ((n > 0)); do
  digits=$digits$((n % 2))
  n=$((n / 2))
done
echo "${digits:-0}"
