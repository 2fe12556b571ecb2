s/d \* d < n/d * d <= n/
