package agenttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pace is how long the answers to the same question took, the fastest first.
type pace []time.Duration

// p99 is the very slowest of fewer than a hundred.
func (p pace) p99() time.Duration {
	if len(p) == 0 {
		return 0
	}
	return p[len(p)*99/100]
}

// slowest is the one of two paces that has the slower p99.
func (p pace) slowest(other pace) pace {
	if other.p99() > p.p99() {
		return other
	}
	return p
}

func (p pace) String() string {
	if len(p) == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %v p99 %v of %d", p[len(p)/2].Round(100*time.Microsecond), p.p99().Round(100*time.Microsecond), len(p))
}

// sight is what a watch sees of the agent and of the neighbour.
type sight struct {
	health, calls pace
	problems      []string
}

const (
	healthPause = 8 * time.Millisecond
	callPause   = 100 * time.Millisecond // each costs a process
	calmPause   = 20 * time.Millisecond  // nobody has to be left in peace
	// patience is how long an answer is awaited: what takes longer is no
	// question of the machine's load any more.
	patience = time.Minute
)

// look asks the agent and the neighbour, again and again, until over is closed
// and each has answered as often as said. The pause is that between calls.
func (w *watch) look(over <-chan struct{}, healths, calls int, pause time.Duration) (s sight) {
	var all sync.WaitGroup
	var unwell, refused []string
	all.Go(func() {
		s.health = ask(over, healthPause, healths, func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if _, err := w.a.Health(ctx); err != nil {
				unwell = append(unwell, "health: "+err.Error())
			}
		})
	})
	all.Go(func() {
		s.calls = ask(over, pause, calls, func() {
			r, err := w.a.Try(w.b.Neighbour, "cat .canary", patience.Seconds())
			switch {
			case err != nil && w.b.OneCount && strings.Contains(err.Error(), noMoreProcesses):
			case err != nil:
				refused = append(refused, "neighbour: "+err.Error())
			case w.canary != "" && strings.TrimSpace(r.Output) != w.canary:
				refused = append(refused, fmt.Sprintf("neighbour reads %q", r.Output))
			}
		})
	})
	all.Wait()
	s.problems = append(unwell, refused...)
	return s
}

// noMoreProcesses is EAGAIN in an error's text.
const noMoreProcesses = "resource temporarily unavailable"

func ask(over <-chan struct{}, pause time.Duration, least int, question func()) (p pace) {
	for {
		began := time.Now()
		question()
		p = append(p, time.Since(began))
		wait := time.After(pause)
		if len(p) < least {
			<-wait
			continue
		}
		select {
		case <-over:
			slices.Sort(p)
			return p
		case <-wait:
		}
	}
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
