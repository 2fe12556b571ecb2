package local

import (
	"math/rand/v2"
	"time"
)

// pause is how long to wait after that many crashes in a row, 1 or more: half
// of it is certain and half by chance, so that containers that fell together
// do not rise together.
func (b Backoff) pause(crashes int) time.Duration {
	whole := b.First
	for i := 1; i < crashes && whole < b.Max; i++ {
		whole *= 2
	}
	whole = min(whole, b.Max)
	return whole/2 + rand.N(whole/2+1)
}
