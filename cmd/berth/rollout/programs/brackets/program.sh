#!/usr/bin/env bash
# Says whether the round brackets of its argument are balanced.
depth=0
text=$1
for ((i = 0; i < ${#text}; i++)); do
  case ${text:i:1} in
    '(') depth=$((depth + 1)) ;;
    ')') depth=$((depth - 1)) ;;
  esac
done
if ((depth == 0)); then echo balanced; else echo unbalanced; fi
