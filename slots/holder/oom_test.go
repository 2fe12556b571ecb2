package holder

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The kernel kills the largest sum of memory and score, a point of which is a
// thousandth of the limit.
func TestTheHolderIsTheLastToGoWithWhateverLimit(t *testing.T) {
	const holderBytes, shellBytes, tiny = 16 << 20, 4 << 20, 1 << 20
	for _, limit := range []int64{48 << 20, 64 << 20, 96 << 20, 512 << 20, 64 << 30} {
		t.Run(fmt.Sprint(limit>>20, "MiB"), func(t *testing.T) {
			o := newOOMScore(0, &Plan{OOMScoreAdj: 1000, MemoryBytes: limit})
			badness := func(score []byte, bytes int64) int64 {
				n, err := strconv.ParseInt(string(score), 10, 64)
				require.NoError(t, err)
				return bytes + n*(limit/1000)
			}
			assert.Greater(t, badness(o.ordinary, tiny), badness(o.own, holderBytes), "a command before the holder")
			assert.Greater(t, badness(o.kept, shellBytes), badness(o.own, holderBytes), "the shell before the holder")
		})
	}
	for _, limit := range []int64{0, 1, 1 << 20, 1 << 62} {
		margin := holderOOMMargin(limit)
		assert.GreaterOrEqual(t, margin, leastOOMMargin)
		assert.LessOrEqual(t, margin, mostOOMMargin, "the agent after the holder")
	}
}
