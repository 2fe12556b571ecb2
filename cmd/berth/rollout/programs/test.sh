#!/usr/bin/env bash
# Runs program.sh on every line of cases.txt: ARGUMENTS => WANTED OUTPUT.
cases=0 failures=0
while IFS= read -r line; do
  arguments=${line%% => *} wanted=${line##* => }
  # shellcheck disable=SC2086 # arguments are words
  got=$(bash program.sh $arguments)
  cases=$((cases + 1))
  if [[ $got != "$wanted" ]]; then
    echo "FAIL: $arguments gave '$got', wanted '$wanted'"
    failures=$((failures + 1))
  fi
done <cases.txt
echo "$cases cases, $failures failures"
exit $((failures > 0))
