package local_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/local"
	"berth/slots"
)

// change rewrites the state of a container that nobody looks after.
func change(t *testing.T, dir, id string, how func(state map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, id, "state")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var state map[string]any
	require.NoError(t, json.Unmarshal(text, &state))
	how(state)
	text, err = json.Marshal(state)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

func TestAKilledOrchestratorsContainersAreAdopted(t *testing.T) {
	c := config(t)
	started, killOrchestrator := orchestrator(t, plan{c, []backend.Spec{spec("a"), spec("b")}})
	held := lease(t, started[0])
	pid := pidOf(t, c.Dir, "a")
	session, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	assert.Equal(t, pid, session, "a key of the terminal does not reach it")
	killOrchestrator()

	begun := time.Now()
	b := open(t, c)
	assert.Equal(t, started, list(t, b), "all is there when it is open")
	t.Logf("2 containers adopted in %v", time.Since(begun))
	assert.Equal(t, pid, pidOf(t, c.Dir, "a"), "the same process")
	eventuallyLeased(t, started[0], held)
	assert.Equal(t, started[0], start(t, b, spec("a")), "starting it once more finds it")
	other := spec("b")
	other.Slots = 2
	_, err = b.Start(soon(t), other)
	assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind)

	next := watch(t, b)
	next(backend.Up)
	next(backend.Up)
	kill(t, pid) // it is no child of ours
	eventuallyLeased(t, started[0], held)
	assert.NotEqual(t, pid, pidOf(t, c.Dir, "a"))
	require.NoError(t, b.Stop(soon(t), "b", time.Second))
	assert.Equal(t, started[1], next(backend.Down).Container, "a restart at the same address is not spoken of")
	assert.NoDirExists(t, filepath.Join(c.Dir, "b"))
}

func TestAContainerWhosePidWasNotNotedIsFound(t *testing.T) {
	c := config(t)
	started, killOrchestrator := orchestrator(t, plan{c, []backend.Spec{spec("a")}})
	pid := pidOf(t, c.Dir, "a")
	killOrchestrator()
	change(t, c.Dir, "a", func(s map[string]any) { delete(s, "process"); delete(s, "address") })
	b := open(t, c)
	assert.Equal(t, started[0], start(t, b, spec("a")))
	assert.Equal(t, pid, pidOf(t, c.Dir, "a"))
}

func TestAPidThatIsUsedAgainIsNotOurs(t *testing.T) {
	for what, forge := range map[string]func(process map[string]any, stranger int){
		"another pid with our start":      func(p map[string]any, stranger int) { p["pid"] = stranger },
		"another process altogether":      func(p map[string]any, stranger int) { p["pid"], p["start"] = stranger, startOf(t, stranger) },
		"the process of an earlier boot":  func(p map[string]any, _ int) { p["boot"] = "earlier" },
		"our pid with a start of its own": func(p map[string]any, _ int) { p["start"] = 1 },
	} {
		t.Run(what, func(t *testing.T) {
			c := config(t)
			started, killOrchestrator := orchestrator(t, plan{c, []backend.Spec{spec("a")}})
			killOrchestrator()
			kill(t, pidOf(t, c.Dir, "a"))
			stranger := exec.Command("sleep", "1000")
			require.NoError(t, stranger.Start())
			ended := make(chan error, 1)
			go func() { ended <- stranger.Wait() }()
			change(t, c.Dir, "a", func(s map[string]any) { forge(s["process"].(map[string]any), stranger.Process.Pid) })

			b := open(t, c)
			restarted := start(t, b, spec("a"))
			assert.Equal(t, started[0].Token, restarted.Token)
			assert.NotEqual(t, stranger.Process.Pid, pidOf(t, c.Dir, "a"))
			require.NoError(t, b.Stop(soon(t), "a", time.Second))
			assert.Empty(t, ended, "the stranger was sent a signal")
			require.NoError(t, stranger.Process.Kill())
			<-ended
		})
	}
}

func startOf(t *testing.T, pid int) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	var start uint64
	_, err = fmt.Sscan(strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))[19], &start)
	require.NoError(t, err)
	return start
}

func TestTwoOrchestratorsShareContainersAndStartNoDoubles(t *testing.T) {
	c := config(t)
	started, killFirst := orchestrator(t, plan{c, []backend.Spec{spec("a"), spec("b")}})
	held := lease(t, started[0])
	second := open(t, c)
	assert.Equal(t, started, list(t, second))
	next := watch(t, second)
	next(backend.Up)
	next(backend.Up)
	assert.Equal(t, started[0], start(t, second, spec("a")))
	pidOf(t, c.Dir, "a") // is one

	kill(t, pidOf(t, c.Dir, "a")) // the first restarts it
	eventuallyLeased(t, started[0], held)
	pidOf(t, c.Dir, "a")

	require.NoError(t, second.Stop(soon(t), "b", time.Second), "the first is asked to do it")
	assert.Equal(t, "b", next(backend.Down).Container.ID)
	assert.NoDirExists(t, filepath.Join(c.Dir, "b"))

	killFirst()
	pid := pidOf(t, c.Dir, "a")
	kill(t, pid) // now it is for the second
	eventuallyLeased(t, started[0], held)
	assert.NotEqual(t, pid, pidOf(t, c.Dir, "a"))
	require.NoError(t, second.Stop(soon(t), "a", time.Second))
	assert.Equal(t, "a", next(backend.Down).Container.ID)
}

func TestWhatAnotherOrchestratorStartsIsSeen(t *testing.T) {
	c := config(t)
	first, second := open(t, c), open(t, c)
	next := watch(t, second)
	a := start(t, first, spec("a"))
	assert.Equal(t, a, next(backend.Up).Container)
	assert.Equal(t, a, start(t, second, spec("a")))
	foreign := spec("a")
	foreign.Template = "other"
	_, err := second.Start(soon(t), foreign)
	assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind)
	require.NoError(t, first.Stop(soon(t), "a", time.Second))
	assert.Equal(t, a, next(backend.Down).Container)

	both := make(chan backend.Container, 2)
	for _, b := range []*local.Backend{first, second} {
		go func() {
			c, err := b.Start(t.Context(), spec("c"))
			assert.NoError(t, err)
			both <- c
		}()
	}
	one, other := <-both, <-both
	assert.Equal(t, one, other, "started by both at once, it is one")
	pidOf(t, c.Dir, "c")
	require.NoError(t, second.Stop(soon(t), "c", time.Second), "whoever looks after it")
}

func TestACloseEndsContainersAndTheNextOpenStartsThemAgain(t *testing.T) {
	c := config(t)
	b, err := local.Open(t.Context(), c)
	require.NoError(t, err)
	a := start(t, b, spec("a"))
	held := lease(t, a)
	require.NoError(t, b.Close())
	assert.Empty(t, processes(c.Dir))
	for range b.Watch(t.Context()) {
		assert.Equal(t, []backend.Container{a}, list(t, b), "it is not down for good")
	}
	_, err = b.Start(t.Context(), spec("b"))
	assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind)
	require.NoError(t, b.Close(), "twice is once")

	b = open(t, c)
	assert.Equal(t, a.Token, start(t, b, spec("a")).Token)
	eventuallyLeased(t, start(t, b, spec("a")), held)
}

func TestContainersThatAreToBeKeptOutliveAClose(t *testing.T) {
	c := config(t)
	c.Keep = true
	b, err := local.Open(t.Context(), c)
	require.NoError(t, err)
	a := start(t, b, spec("a"))
	pid := pidOf(t, c.Dir, "a")
	require.NoError(t, b.Close())
	assert.Equal(t, pid, pidOf(t, c.Dir, "a"))
	c.Keep = false
	b = open(t, c)
	assert.Equal(t, []backend.Container{a}, list(t, b))
}

func TestAStopGoesOnAfterItsOrchestratorWasKilled(t *testing.T) {
	c := config(t)
	_, killOrchestrator := orchestrator(t, plan{c, []backend.Spec{spec("a")}})
	killOrchestrator()
	change(t, c.Dir, "a", func(s map[string]any) { s["stop"] = true })
	b := open(t, c)
	require.NoError(t, b.Stop(soon(t), "a", time.Second))
	assert.NoDirExists(t, filepath.Join(c.Dir, "a"))
	assert.Empty(t, processes(c.Dir))
}

func TestADirectoryThatMakesNoSenseIsLeftAlone(t *testing.T) {
	c := config(t)
	for name, text := range map[string]string{
		"torn": `{"spec":`, "foreign": `{"spec":{"ID":"other","Slots":1}}`, "impossible": `{"spec":{"ID":"impossible","Slots":0}}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(c.Dir, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(c.Dir, name, "state"), []byte(text), 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(c.Dir, "empty"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "file"), nil, 0o600))
	b := open(t, c)
	assert.Empty(t, list(t, b))
	for _, id := range []string{"torn", "foreign", "impossible"} {
		_, err := b.Start(soon(t), spec(id))
		assert.Equal(t, slots.KindInternal, slots.AsError(err).Kind)
		assert.FileExists(t, filepath.Join(c.Dir, id, "state"))
	}
	start(t, b, spec("empty")) // somebody got no further than that
}
