package hostile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/slots"
	"berth/slots/need"
)

// TestHostileSFrozen has a slot whose processes cannot be killed for a while:
// a frozen cgroup holds them as a hung file system would.
func TestHostileSFrozen(t *testing.T) {
	for _, set := range settings(t) {
		if set.uid != 0 || set.level != slots.LevelUID && set.level != slots.LevelNS {
			continue // how a holder is killed differs between these two only
		}
		t.Run(set.name+"/S06_Unkillable", func(t *testing.T) {
			t.Parallel()
			s := newStage(t, set, nil)
			thaw := func() {}
			s.Watch(t, agenttest.Bounds{}, func() {
				ended := make(chan string, 1)
				began := time.Now()
				go func() {
					r, err := s.Try("slot_0", "sleep 4713", 4) // frozen before that
					outcome := "none"
					if r.Metadata.Receipt != nil {
						outcome = string(r.Metadata.Outcome)
					}
					ended <- fmt.Sprintf("%s %v", outcome, err)
				}()
				holder, _ := s.holderOf(t, "4713")
				thaw = freeze(t, holder)
				select {
				case what := <-ended:
					t.Logf("answered %q after %v", what, time.Since(began).Round(time.Millisecond))
					s.Within(t, "an answer", time.Since(began), 20*time.Second)
				case <-time.After(time.Minute):
					t.Error("a call on processes that cannot be killed has no answer")
				}
				receipt, err := s.Reset(t.Context(), "slot_0", nil)
				t.Logf("reset: %v, %+v", err, receipt)
				if assert.Error(t, err, "what cannot be proven is quarantined") {
					assert.Equal(t, slots.KindResetFailed, slots.AsError(err).Kind)
				}
				list, err := s.Slots(t.Context())
				require.NoError(t, err)
				assert.Equal(t, slots.StateQuarantined, list[0].State)
				_, err = s.Try("slot_0", "true", 5)
				if assert.Error(t, err) {
					assert.Equal(t, slots.KindResetFailed, slots.AsError(err).Kind, "%v", err)
				}
			})
			thaw()
			require.Eventually(t, func() bool {
				_, err := s.Reset(t.Context(), "slot_0", nil)
				return err == nil
			}, time.Minute, 200*time.Millisecond, "once they can be killed the slot is usable again")
			s.works(t)
			s.noStrays(t)
		})
	}
}

// freeze freezes a process and all below it.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	const root = "/sys/fs/cgroup/freezer"
	dir := filepath.Join(root, fmt.Sprintf("berth-frozen-%d", pid))
	need.Facility(t, "cgroup", os.Mkdir(dir, 0o755))
	pending := []string{fmt.Sprint(pid)}
	for len(pending) > 0 {
		at := pending[0]
		pending = pending[1:]
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(at), 0o644))
		lists, _ := filepath.Glob("/proc/" + at + "/task/*/children")
		for _, name := range lists {
			text, _ := os.ReadFile(name)
			pending = append(pending, strings.Fields(string(text))...)
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("FROZEN"), 0o644))
	thawed := false
	thaw = func() {
		if thawed {
			return
		}
		thawed = true
		assert.NoError(t, os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0o644))
	}
	t.Cleanup(func() {
		thaw()
		for deadline := time.Now().Add(agenttest.Patient(5 * time.Second)); os.Remove(dir) != nil && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
		}
	})
	return thaw
}
