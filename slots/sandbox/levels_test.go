package sandbox_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"berth/slots"
)

// example is one thing that must hold at every level. It gets a sandbox that
// nobody has used since its reset.
type example struct {
	name string
	hold func(t *testing.T, x fixture)
}

// examples are told in the files that their names stand in.
func examples() []example {
	var all []example
	for _, some := range [][]example{runExamples, killExamples, shellExamples, jobExamples, fileExamples, confinementExamples, resetExamples, lossExamples, terminalExamples} {
		all = append(all, some...)
	}
	return all
}

// reachable is the level that this machine gives who asks for l.
func reachable(l slots.Level) slots.Level {
	root := os.Geteuid() == 0
	switch {
	case root && l == slots.LevelBasic:
		return slots.LevelNone // the kernel never refuses root a process
	case !root && (l == slots.LevelUID || l == slots.LevelUIDLandlock):
		return slots.LevelLandlock
	case !root && l == slots.LevelNSCgroup:
		return slots.LevelNS
	}
	return l
}

func TestAtEveryLevel(t *testing.T) {
	fds, goroutines := descriptors(t), runtime.NumGoroutine()
	t.Run("level", func(t *testing.T) {
		for _, l := range slots.Levels() {
			if l > slots.LevelBasic && reachable(l) != l {
				continue // tested under its own name
			}
			t.Run(l.String(), func(t *testing.T) {
				t.Parallel() // most of it is waiting
				holdAll(t, l)
			})
		}
	})
	requireNoGrowth(t, fds, goroutines)
}

func holdAll(t *testing.T, l slots.Level) {
	h := openHost(t, atLevel(l))
	if got := h.Isolation().Level; got != reachable(l) {
		t.Skipf("needs isolation level %s: this machine gives %s: %+v", l, got, h.Report().Attempts)
	}
	s := open(t, h, "slot_0")
	for _, e := range examples() {
		t.Run(e.name, func(t *testing.T) { e.hold(t, fixture{h, s, l}) })
		receipt, err := s.Reset(t.Context())
		require.NoError(t, err, "after %s", e.name)
		require.True(t, receipt.Clean, "after %s: %+v", e.name, receipt)
	}
}

func TestAtEveryLevelAsAnOrdinaryUser(t *testing.T) {
	needRoot(t)
	t.Parallel()
	cmd := reexec(t, nobody, nil, "-test.run=^TestAtEveryLevel$", "-test.v", "-test.timeout=5m")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", firstLines(string(out), 60))
}
