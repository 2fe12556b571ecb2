s/\[\[ \$word > \$longest \]\]/((${#word} > ${#longest}))/
