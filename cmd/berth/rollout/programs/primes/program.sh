#!/usr/bin/env bash
# Prints the primes up to its argument on one line.
primes=()
for ((n = 2; n <= $1; n++)); do
  prime=1
  for ((d = 2; d * d < n; d++)); do
    if ((n % d == 0)); then prime=0; fi
  done
  if ((prime)); then primes+=("$n"); fi
done
echo "${primes[*]}"
