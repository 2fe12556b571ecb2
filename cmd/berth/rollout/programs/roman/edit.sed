s/^values=.*/values=(1000 900 500 400 100 90 50 40 10 9 5 4 1)/
s/^signs=.*/signs=(M CM D CD C XC L XL X IX V IV I)/
