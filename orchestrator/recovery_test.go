package orchestrator_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

// recovery is how long the promises of 5 s may take where tests share a machine.
const recovery = 30 * time.Second

// shared is a directory that the slots of a test may write to, which no slot's
// reset empties.
func shared(t testing.TB) string {
	t.Helper()
	dir := sandboxtest.DataDir(t)
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky)) //nolint:gosec // slots have users of their own
	return dir
}

// shut makes a gate, at which ": < gate" waits until the test opens it.
func shut(t testing.TB, gate string) {
	t.Helper()
	require.NoError(t, syscall.Mkfifo(gate, 0o600))
	require.NoError(t, os.Chmod(gate, 0o666)) //nolint:gosec // whoever slots run as
}

func open(t testing.TB, gate string) {
	t.Helper()
	f, err := os.OpenFile(gate, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
}

// lineCount is how many lines the files of a directory have, by name.
func lineCount(t testing.TB, dir string) map[string]int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]int{}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		require.NoError(t, err)
		all[entry.Name()] = strings.Count(string(text), "\n")
	}
	return all
}

func TestAKilledOrchestratorComesBackAndEveryCallHasItsOneResult(t *testing.T) {
	const calls = 200 // that run at once
	dir, effects := sandboxtest.DataDir(t), shared(t)
	// Slots without isolation reach the directory, and the gate in it.
	args := []string{"--containers", "2", "--slots", fmt.Sprint(calls / 2), "--sandboxd-arg", "--isolation-attempt=none"}
	gate := filepath.Join(effects, "gate")
	shut(t, gate)
	d := spawn(t, dir, args...)
	d.slots(calls)
	var now atomic.Pointer[instance] // whom clients find
	now.Store(d.instance)
	var group sync.WaitGroup
	var tries atomic.Int64
	for n := range calls {
		group.Go(func() {
			name := fmt.Sprint("call-", n)
			command := fmt.Sprintf("echo ran >> %s/%s; : < %s; echo %s", effects, name, gate, name)
			answer, sent, err := insist(now.Load, fmt.Sprint("t", n), name, command)
			tries.Add(int64(sent))
			if assert.NoError(t, err) {
				assert.Equal(t, name, answer.object()["output"], "%s", answer.body)
			}
		})
	}
	require.Eventually(t, func() bool { return len(lineCount(t, effects)) == calls }, patience, 50*time.Millisecond)
	d.kill()
	d = spawn(t, dir, args...)
	t.Logf("ready again %v after its start, with %d calls running", d.took, calls)
	assert.Less(t, d.took, recovery, "5 s are promised")
	now.Store(d.instance)
	open(t, gate)
	group.Wait()
	t.Logf("%d calls were sent %d times", calls, tries.Load())
	assert.Greater(t, tries.Load(), int64(calls), "none was cut off")
	counts := lineCount(t, effects)
	assert.Len(t, counts, calls)
	for name, n := range counts {
		assert.Equal(t, 1, n, name)
	}
	d.allEnd()
}

func TestTwoOrchestratorsNeverGiveOneSlotToTwo(t *testing.T) {
	const slots, trajectories, rounds = 8, 16, 12
	dir := sandboxtest.DataDir(t)
	args := []string{"--containers", "2", "--slots", fmt.Sprint(slots / 2), "--lease-ttl", "15s"}
	both := [2]*daemon{spawn(t, dir, args...)}
	both[0].slots(slots)
	both[1] = spawn(t, dir, args...)
	both[1].slots(slots)
	var holders sync.Map // trajectory by slot
	var won [2]atomic.Int64
	var dead atomic.Bool // the first one
	var group sync.WaitGroup
	for n := range trajectories {
		group.Go(func() {
			for round := range rounds {
				at := (n + round) % 2
				me := fmt.Sprintf("t%d-%d", n, round)
				lease := leaseFrom(t, func() *instance {
					if dead.Load() {
						at = 1
					}
					return both[at].instance
				}, me)
				if lease == nil {
					return
				}
				won[at].Add(1)
				slot := fmt.Sprint(lease["container"], lease["slot_id"])
				other, taken := holders.LoadOrStore(slot, me)
				assert.False(t, taken, "%s has %s as well as %s", other, slot, me)
				// It is empty, and nobody else writes to it.
				r, err := both[1].try(http.MethodPost, path(lease, "/execute"), object{"tool": "bash", "args": object{
					"command": "ls -A; echo " + me + " >> owner; sleep 0.05; cat owner",
				}})
				if assert.NoError(t, err) && assert.Equal(t, 200, r.status, "%s", r.body) {
					assert.Equal(t, me, r.object()["output"])
				}
				holders.Delete(slot)
				r, err = both[1].try(http.MethodDelete, path(lease, ""), nil)
				if assert.NoError(t, err) {
					assert.Equal(t, 200, r.status, "%s", r.body)
				}
			}
		})
	}
	require.Eventually(t, func() bool { return won[0].Load() > 3*trajectories }, patience, time.Millisecond)
	dead.Store(true)
	both[0].kill()
	group.Wait()
	t.Logf("%d leases from the one that was killed, %d from the other", won[0].Load(), won[1].Load())
	assert.Equal(t, int64(trajectories*rounds), won[0].Load()+won[1].Load())
	both[1].allEnd()
}

// leaseFrom leases a slot from whom to says at the time, and asks again when
// that does not answer; nil after a test's patience.
func leaseFrom(t *testing.T, to func() *instance, trajectory string) object {
	t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		r, err := to().try(http.MethodPost, "/v1/leases", object{"trajectory": trajectory, "wait_s": 1})
		if err == nil && r.status == http.StatusCreated {
			return r.object()
		}
		if !assert.True(t, time.Now().Before(until), "%v %s", err, r.body) {
			return nil
		}
	}
}

func TestSlotsOfAKilledClientAreFreeAndCleanAfterTheirTime(t *testing.T) {
	const slots, ttl = 8, 3 * time.Second // as the client asks for
	d := spawn(t, sandboxtest.DataDir(t), "--containers", "2", "--slots", fmt.Sprint(slots/2))
	d.slots(slots)
	me, err := os.Executable()
	require.NoError(t, err)
	client := exec.CommandContext(t.Context(), me)
	client.Env = append(os.Environ(), envClient+"="+d.url)
	said := &locked{}
	client.Stdout, client.Stderr = said, said
	require.NoError(t, client.Start())
	ended := make(chan error, 1)
	go func() { ended <- client.Wait() }()
	require.Eventually(t, func() bool { return strings.Contains(said.String(), fmt.Sprintf("held %d\n", slots)) }, patience, 10*time.Millisecond, "%s", said)
	free := func() float64 { return d.get("/status").object()["pool"].(object)["available_slots"].(float64) }
	for until := time.Now().Add(2 * ttl); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		require.Zero(t, free(), "it keeps them for longer than their time: %s", said)
	}
	require.NoError(t, client.Process.Kill())
	killed := time.Now()
	require.Error(t, <-ended)
	require.Eventually(t, func() bool { return free() == slots }, ttl+recovery, 10*time.Millisecond, "the TTL and 5 s are promised")
	t.Logf("all %d slots are free %v after their client was killed; they were leased for %v", slots, time.Since(killed), ttl)
	for n := range slots {
		lease := d.acquire(object{"trajectory": fmt.Sprint("next-", n)})
		r := d.post(path(lease, "/execute"), object{"tool": "bash", "args": object{"command": "ls -A; pgrep -cx sleep -u $(id -u)"}})
		assert.Contains(t, []any{"", "0"}, r.object()["output"], "%s", r.body)
	}
	d.allEnd()
}

func TestLeasesAndFilesSurviveAKilledContainerAndCallsAreAnsweredHonestly(t *testing.T) {
	const slots, kills = 8, 3
	i := start(t, sandboxtest.DataDir(t), "--containers", "2", "--slots", fmt.Sprint(slots/2))
	leases := func() map[string]string {
		all := map[string]string{}
		for _, l := range i.get("/v1/leases").object()["leases"].([]any) {
			l := l.(object)
			all[l["trajectory"].(string)] = l["lease"].(string)
		}
		return all
	}
	for n := range slots {
		i.run(fmt.Sprint("t", n), "echo kept > kept")
	}
	before := leases()
	require.Len(t, before, slots)
	var enough atomic.Bool
	var group sync.WaitGroup
	var answered, cut, tries atomic.Int64
	for n := range slots {
		me := fmt.Sprint("t", n)
		group.Go(func() {
			surely, perhaps := map[string]bool{}, map[string]bool{}
			for k := 0; !enough.Load(); k++ {
				name := fmt.Sprint("line-", k)
				answer, sent, err := insist(func() *instance { return i }, me, name, "echo "+name+" >> log; sleep 0.02")
				tries.Add(int64(sent))
				if !assert.NoError(t, err) { //nolint:testifylint // not in a goroutine
					return
				}
				switch m := answer.metadata(); {
				case answer.object()["success"] == true:
					answered.Add(1)
					surely[name] = true
				case assert.Equal(t, "interrupted", m["error_kind"], "%s", answer.body):
					cut.Add(1)
					perhaps[name] = m["executed"] != "never"
				}
			}
			answer, _, err := insist(func() *instance { return i }, me, "last", "cat kept log")
			if !assert.NoError(t, err) { //nolint:testifylint // not in a goroutine
				return
			}
			log := strings.Fields(answer.object()["output"].(string))
			if !assert.NotEmpty(t, log, "%s", answer.body) {
				return
			}
			assert.Equal(t, "kept", log[0])
			for _, line := range log[1:] {
				assert.True(t, surely[line] || perhaps[line], "%s of %s ran twice, or never says its answer", line, me)
				delete(surely, line)
				delete(perhaps, line)
			}
			assert.Empty(t, surely, "ran, says the answer")
		})
	}
	for range kills {
		for id, pid := range i.pids() {
			had := answered.Load()
			require.Eventually(t, func() bool { // what looked like it may have been a child that was starting
				pid = i.pids()[id]
				return pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
			}, patience, time.Millisecond)
			killed := time.Now()
			require.Eventually(t, func() bool { return i.pids()[id] != pid && i.pids()[id] > 0 }, patience, 10*time.Millisecond, "it is not started again")
			require.Eventually(t, func() bool { return answered.Load() > had+slots }, patience, 10*time.Millisecond, "calls go on")
			t.Logf("container %s was started again, and calls went on, within %v", id, time.Since(killed))
		}
	}
	enough.Store(true)
	group.Wait()
	t.Logf("%d calls answered, %d cut off and told so, sent %d times", answered.Load(), cut.Load(), tries.Load())
	assert.Equal(t, before, leases())
	assert.NotContains(t, i.log.String(), "given up")
}
