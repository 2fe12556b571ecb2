s/total=\$((number))/total=$((total + number))/
