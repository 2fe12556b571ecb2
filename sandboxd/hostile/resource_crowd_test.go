package hostile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
)

// TestHostileRCrowd has slots use up what they share with the agent because
// nothing there counts them apart. The slots then suffer; the agent must not.
func TestHostileRCrowd(t *testing.T) {
	for _, set := range settings(t) {
		if set.level == slots.LevelNSCgroup || set.level == slots.LevelNone {
			continue
		}
		t.Run(set.name+"/R02_ContainerOutOfPids", func(t *testing.T) {
			if set.level == slots.LevelLandlock && set.uid == 0 {
				t.Skip("not promised here: root's processes are not counted, so nothing but the container's limit ends a bomb")
			}
			s := newStage(t, set, func(o *agenttest.Options) { o.Args = append(o.Args, "--pids", "150") })
			refused := s.crowd(t, 220)
			var all sync.WaitGroup
			for _, slot := range []string{"slot_0", "slot_2"} {
				all.Go(func() {
					r, err := s.Tool(slot, "bash", map[string]any{"command": "exec /usr/bin/python3 -I -", "stdin": fastBomb}, 2)
					t.Logf("%s: %v %v", slot, r.Metadata.Receipt, err)
				})
			}
			for range 16 { // so that the agent may want more threads
				all.Go(func() {
					for range 20 {
						s.ListArtifacts(t.Context(), api.ListRequest{SlotID: "slot_1", Recursive: true}) // its holder may want a thread too
						_, err := s.Health(t.Context())
						assert.NoError(t, err) //nolint:testifylint // not in a goroutine
						time.Sleep(50 * time.Millisecond)
					}
				})
			}
			all.Wait()
			assert.Positive(t, refused(), "the container's limit was reached")
			require.True(t, s.Alive(), "the agent has ended\n%s", s.Log())
			assert.Eventually(t, func() bool {
				r, err := s.Try("slot_0", "echo works", 5)
				return err == nil && r.Output == "works"
			}, agenttest.Patient(20*time.Second), 200*time.Millisecond)
			r := s.Bash(t, "slot_1", "echo works", 20)
			assert.Equal(t, "works", r.Output)
			s.tidy(t)
			s.noStrays(t)
		})
	}
}

// fastBomb does not wait when a fork fails.
const fastBomb = `
import os
while True:
    try: os.fork()
    except OSError: pass
`

// crowd puts the agent and all of its processes into a cgroup with few pids. The
// answer tells how many forks that has refused.
func (s *stage) crowd(t *testing.T, pids int) (refused func() int) {
	t.Helper()
	root := "/sys/fs/cgroup/pids"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	dir := filepath.Join(root, fmt.Sprintf("berth-crowd-%d", s.PID))
	need.Facility(t, "cgroup", os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		for deadline := time.Now().Add(agenttest.Patient(5 * time.Second)); os.Remove(dir) != nil && time.Now().Before(deadline); {
			// The agent ends before this in the order of cleanups only when it
			// was started after: move what is left out instead.
			left, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for pid := range strings.FieldsSeq(string(left)) {
				os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(pid), 0o644) // it may have ended
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	need.Facility(t, "cgroup", os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.Itoa(pids)), 0o644))
	pending := []int{s.PID}
	for len(pending) > 0 {
		pid := pending[0]
		pending = pending[1:]
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644))
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, name := range lists {
			text, _ := os.ReadFile(name)
			for child := range strings.FieldsSeq(string(text)) {
				n, _ := strconv.Atoi(child)
				pending = append(pending, n)
			}
		}
	}
	return func() int {
		text, err := os.ReadFile(filepath.Join(dir, "pids.events"))
		require.NoError(t, err)
		_, after, _ := strings.Cut(string(text), "max ")
		n, _ := strconv.Atoi(strings.TrimSpace(after))
		return n
	}
}

// inFlight keeps as many descriptors on their way through sockets as it may.
const inFlight = `
import socket, os, array, time
kept, n, fds = [], 0, array.array("i", [0] * 253)
try:
    while n < 100000:
        a, b = socket.socketpair(); kept.append((a, b)); a.setblocking(False)
        try:
            while True: a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]); n += 253
        except BlockingIOError: pass
except OSError: pass
print("sent=%d" % n, flush=True)
time.sleep(300)
`

// descriptorsOnTheirWay are counted per user: where slots share one, a
// neighbour's holder may pass no pipe any more.
func descriptorsOnTheirWay(t *testing.T, s *stage) {
	_, err := s.Tool("slot_0", "write_file", map[string]any{"path": "inflight.py", "content": inFlight}, 20)
	require.NoError(t, err)
	r, err := s.Tool("slot_0", "bash_stateful", map[string]any{
		"command": "python3 -I inflight.py < /dev/null > sent & until grep -q sent sent; do sleep 0.05; done; cat sent",
	}, 20)
	require.NoError(t, err)
	assert.Greater(t, number(t, r.Output, "sent"), stageOpenFiles-253)
	for _, slot := range []string{"slot_2", "slot_0"} {
		for tool, commands := range map[string]map[string]string{
			"bash":          {"echo start; sleep 0.3; true": "start", "seq 50000 | sha256sum; seq 50000": "49999\n50000", "(sleep 0.1; echo late) & echo early": "early"},
			"bash_stateful": {"cd /; echo in $PWD; sleep 0.1; echo on": "in /\non", "seq 20000": "19999\n20000"},
		} {
			for command, want := range commands {
				r, err := s.Tool(slot, tool, map[string]any{"command": command}, 20)
				if assert.NoError(t, err, command) {
					assert.True(t, r.Success, "%s: %+v", command, r.Metadata.Receipt)
					assert.Contains(t, r.Output, want, "%s: %s %s in %s", r.Error, tool, command, slot)
				}
			}
		}
		s.Bash(t, slot, "seq 15000 > long", 20)
		r, err := s.Tool(slot, "read_file", map[string]any{"path": "long"}, 20)
		require.NoError(t, err)
		assert.True(t, r.Success, r.Error)
		assert.Contains(t, r.Output, "1499", "the beginning of it at least")
	}
}
