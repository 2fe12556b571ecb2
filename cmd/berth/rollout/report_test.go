package rollout

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReportIsATableOfWhatHappened(t *testing.T) {
	report := Report{
		Slots: 2, Took: 120 * time.Millisecond,
		Results: []Result{
			{Executions: 10, Latencies: []time.Duration{time.Millisecond, 3 * time.Millisecond}},
			{Executions: 4, Latencies: []time.Duration{2 * time.Millisecond, 40 * time.Millisecond}, Err: errors.New("lost")},
		},
	}
	var out bytes.Buffer
	require.NoError(t, report.Write(&out))
	assert.Equal(t, ""+
		"trajectories   slots   executions   p50      p99       total      failures\n"+
		"2              2       14           2.0 ms   40.0 ms   120.0 ms   1\n", out.String())
}

func TestReportOfNothingIsZeros(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Report{}.Write(&out))
	assert.Contains(t, out.String(), "0.0 ms")
}

func TestQuantileIsTheNearestRank(t *testing.T) {
	values := make([]time.Duration, 200)
	for i := range values {
		values[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		n, percent int
		want       time.Duration
	}{
		{0, 50, 0}, {1, 50, 1}, {1, 99, 1}, {2, 50, 1}, {3, 50, 2}, {100, 99, 99}, {200, 99, 198}, {200, 50, 100}, {200, 100, 200},
	} {
		assert.Equal(t, c.want, quantile(values[:c.n], c.percent), "%d values, p%d", c.n, c.percent)
	}
}

func TestChangedCountsLinesButNotTheHeaderOfADiff(t *testing.T) {
	assert.Equal(t, "diff -1 +2", changed("--- a\n+++ b\n@@ -1 +1,2 @@\n same\n-old\n+new\n+newer\n"))
	assert.Equal(t, "diff -0 +0", changed(""))
}
