3s/3/15/
4s/fizz/fizzbuzz/
5s/5/3/
6s/buzz/fizz/
7s/15/5/
8s/fizzbuzz/buzz/
