package agenttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Bounds are what a watched test allows. Zero fields have the named defaults.
type Bounds struct {
	Neighbour string        // the slot that must go on; default slot_1
	HealthP99 time.Duration // default 100 ms, generous for a loaded machine: times 5
	CallMax   time.Duration // one call on the neighbour; default 10 s
	GrowthMiB int64         // of the agent's memory; default 64
}

// Watch has the neighbour work and the agent answer while attack runs, and
// fails the test when one of them does not: the neighbour's file keeps its
// content, its calls succeed, /health answers in time, the agent lives on
// with the memory, descriptors and threads it had.
func (a *Agent) Watch(t testing.TB, b Bounds, attack func()) {
	t.Helper()
	if b.Neighbour == "" {
		b.Neighbour = "slot_1"
	}
	if b.HealthP99 == 0 {
		b.HealthP99 = 500 * time.Millisecond
	}
	if b.CallMax == 0 {
		b.CallMax = 10 * time.Second
	}
	if b.GrowthMiB == 0 {
		b.GrowthMiB = 64
	}
	canary := "canary-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	require.True(t, a.Bash(t, b.Neighbour, "printf %s "+canary+" > .canary", 20).Success)
	before := a.footprint(t)
	done := make(chan struct{})
	var health []time.Duration
	var problems []string
	stopped := make(chan struct{})
	go func() { // ends when the attack has
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			if _, err := a.Health(ctx); err != nil {
				problems = append(problems, "health: "+err.Error())
			}
			cancel()
			health = append(health, time.Since(began))
			if n%5 != 0 {
				continue
			}
			began = time.Now()
			r, err := a.Try(b.Neighbour, "cat .canary", 30)
			switch {
			case err != nil:
				problems = append(problems, "neighbour: "+err.Error())
			case strings.TrimSpace(r.Output) != canary:
				problems = append(problems, fmt.Sprintf("neighbour reads %q", r.Output))
			case time.Since(began) > b.CallMax:
				problems = append(problems, fmt.Sprintf("neighbour waited %v", time.Since(began)))
			}
		}
	}()
	attack()
	close(done)
	<-stopped
	require.True(t, a.Alive(), "the agent has ended\n%s", a.Log())
	assert.Empty(t, problems)
	if len(health) > 0 {
		slices.Sort(health)
		p99 := health[len(health)*99/100]
		if len(health) < 100 {
			b.HealthP99 *= 5 // of so few it is the very slowest
		}
		assert.LessOrEqual(t, p99, b.HealthP99, "p99 of /health over %d", len(health))
	}
	r := a.Bash(t, b.Neighbour, "cat .canary", 20)
	assert.Equal(t, canary, strings.TrimSpace(r.Output), "the neighbour's file")
	assert.Eventually(t, func() bool {
		after := a.footprint(t)
		return after.rss-before.rss <= b.GrowthMiB<<20 && after.fds <= before.fds+16 && after.threads <= before.threads+40
	}, 15*time.Second, 100*time.Millisecond, "the agent's footprint grew: %+v, was %+v", a.footprint(t), before)
}

type footprint struct {
	rss          int64
	fds, threads int
}

func (a *Agent) footprint(t testing.TB) footprint {
	t.Helper()
	proc := filepath.Join("/proc", strconv.Itoa(a.PID))
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	require.NoError(t, err)
	var f footprint
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			f.rss = n << 10
		case "Threads:":
			f.threads = int(n)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(proc, "fd")); err == nil { // not ours to see as another user
		f.fds = len(entries)
	}
	return f
}
