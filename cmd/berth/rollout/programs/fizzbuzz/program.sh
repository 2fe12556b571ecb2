#!/usr/bin/env bash
# Says fizz for multiples of 3, buzz for those of 5, fizzbuzz for both.
if (($1 % 3 == 0)); then
  echo fizz
elif (($1 % 5 == 0)); then
  echo buzz
elif (($1 % 15 == 0)); then
  echo fizzbuzz
else
  echo "$1"
fi
