package agenttest

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestHealthIsHeldToItsPromiseAndASlowMachineToItsOwnPace(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		patience    string
		calm, seen  time.Duration
		calls, took time.Duration // of the neighbour: calm, and during the attack
		late        []string
	}{
		{calm: 2 * ms, seen: 100 * ms},
		{calm: 2 * ms, seen: 101 * ms, late: []string{"p99 of /health"}},
		{calm: 24 * ms, seen: 101 * ms, late: []string{"p99 of /health"}},
		{calm: 50 * ms, seen: 200 * ms},
		{calm: 50 * ms, seen: 201 * ms, late: []string{"p99 of /health"}},
		{patience: "8", calm: 50 * ms, seen: 800 * ms},
		{patience: "8", calm: 50 * ms, seen: 801 * ms, late: []string{"p99 of /health"}},
		{calls: 20 * ms, took: 1000 * ms},
		{calls: 20 * ms, took: 1001 * ms, late: []string{"p99 of the neighbour's calls"}},
		{calls: 200 * ms, took: 1600 * ms},
	} {
		t.Setenv("BERTH_PATIENCE", c.patience)
		late := (&watch{b: Bounds{Health: healthBar, Calls: callBar}}).judge(sight{health: pace{c.seen}, calls: pace{c.took}}, sight{health: pace{c.calm}, calls: pace{c.calls}})
		assert.Equal(t, c.late, slices.Collect(maps.Keys(late)), "%+v", c)
	}
}
