s/digits=\$digits\$((n % 2))/digits=$((n % 2))$digits/
