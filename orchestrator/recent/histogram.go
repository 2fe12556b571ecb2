package recent

import (
	"math/bits"
	"time"
)

// A histogram counts durations by their microseconds: eight buckets for each
// power of two, so that a quantile is true to an eighth. It reaches up to
// 2^maxBits µs, which is 2 hours; all that is longer counts as that.
const (
	maxBits    = 33
	fineBits   = 3
	fine       = 1 << fineBits
	maxBuckets = (maxBits - fineBits) * fine
)

type histogram [maxBuckets]uint32

func (h *histogram) add(d time.Duration) { h[bucket(d)]++ }

// bucket is the place that counts d.
func bucket(d time.Duration) int {
	us := uint64(max(0, d.Microseconds())) //nolint:gosec // it is not below 0
	n := bits.Len64(us)
	if n <= fineBits {
		return int(us) //nolint:gosec // it is below fine
	}
	rest := us >> (n - 1 - fineBits) & (fine - 1)
	return min(maxBuckets-1, (n-fineBits)*fine+int(rest)) //nolint:gosec // rest is below fine
}

// longest is the longest duration that the bucket counts.
func longest(at int) time.Duration {
	if at < fine {
		return time.Duration(at) * time.Microsecond
	}
	n, rest := at/fine+fineBits, at%fine
	return time.Duration((fine+rest+1)<<(n-1-fineBits)-1) * time.Microsecond
}

// quantile is what percent of the n durations do not exceed; 0 of none.
func (h *histogram) quantile(n, percent uint32) time.Duration {
	if n == 0 {
		return 0
	}
	want := (n*percent + 99) / 100
	for at, count := range h {
		if count >= want {
			return longest(at)
		}
		want -= count
	}
	return longest(maxBuckets - 1)
}
