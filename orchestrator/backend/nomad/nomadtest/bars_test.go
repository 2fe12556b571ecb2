package nomadtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/orchestrator/poolapi"
	"berth/slots/sandbox/sandboxtest"
)

// bar holds a figure against what it must be, where BERTH_BARS says that the
// machine has nothing else to do; else it is told only.
func bar(t *testing.T, is bool, format string, figures ...any) {
	t.Helper()
	words := fmt.Sprintf(format, figures...)
	t.Log("bar: " + words)
	if os.Getenv("BERTH_BARS") != "" {
		assert.True(t, is, words)
	}
}

func TestAQueueHasAContainerStartedSoon(t *testing.T) {
	a := nomadtest.Start(t, nomadtest.Config{})
	size := []string{"--containers", "1", "--max-containers", "3", "--slots", "1"}
	leads := serve(t, a.URL, size...)
	leads.settled(t, 1)
	follows := serve(t, a.URL, size...)
	follows.settled(t, 1)
	first, err := leads.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: "first", TTLSeconds: 600, WaitS: 60})
	require.NoError(t, err)
	held := []string{first.ID}
	for _, at := range []struct {
		name  string
		asked *orchestrator
	}{{"who scales", leads}, {"another", follows}} {
		t.Run(at.name, func(t *testing.T) {
			before := leads.said(t, "job scaled")
			begun := time.Now()
			leased := make(chan error, 1)
			var lease poolapi.Lease
			go func() { // waited for below
				var err error
				lease, err = at.asked.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: at.name, TTLSeconds: 600, WaitS: 60})
				leased <- err
			}()
			var decided time.Duration
			leads.await(t, "a decision", func() bool {
				decided = time.Since(begun)
				return leads.said(t, "job scaled") > before
			})
			require.NoError(t, <-leased)
			held = append(held, lease.ID)
			took := time.Since(begun)
			bar(t, decided <= time.Second, "scale-out carried out %v after a queue formed, at most 1s", decided.Round(time.Millisecond))
			bar(t, took <= 6*time.Second, "first lease on the new container %v after, at most 6s", took.Round(time.Millisecond))
		})
	}
	for _, one := range held { // so that the containers end soon
		_, err := leads.Release(t.Context(), one)
		assert.NoError(t, err)
	}
}

// playedRow is the demo's table: executions and what all of them took.
var playedRow = regexp.MustCompile(`(?m)^\d+ +\d+ +(\d+) +[0-9.]+ ms +[0-9.]+ ms +([0-9.]+) ms +0$`)

// demo plays the demo on the pool and returns executions per second.
func demo(t *testing.T, o *orchestrator, trajectories int) float64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(t, "berth"), "demo", "--url", o.url, "--trajectories", strconv.Itoa(trajectories)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	row := playedRow.FindSubmatch(out)
	require.NotNil(t, row, "%s", out)
	n, err := strconv.ParseFloat(string(row[1]), 64)
	require.NoError(t, err)
	took, err := strconv.ParseFloat(string(row[2]), 64)
	require.NoError(t, err)
	return n / took * 1000
}

// The tasks of Nomad are one cgroup, with the weight of one program of the
// machine. So what else runs there, and is in none, takes more from a pool on
// Nomad than from a local one: where nothing does the two are equal.
func TestTheDemoPlaysOnNomadAsItDoesLocally(t *testing.T) {
	rounds, trajectories := 1, 16
	if os.Getenv("BERTH_BARS") != "" { // else it is that it plays
		rounds, trajectories = 2, 64
	}
	a := nomadtest.Start(t, nomadtest.Config{})
	size := []string{"--containers", "2", "--slots", "8"}
	there := serve(t, a.URL, size...)
	here := serveOn(t, sandboxtest.DataDir(t), size)
	there.settled(t, 2)
	here.settled(t, 2)
	demo(t, there, trajectories/4) // what is done once only
	demo(t, here, trajectories/4)
	var onNomad, locally float64
	for range rounds { // by turns, as the machine has other things to do as well
		locally += demo(t, here, trajectories)
		onNomad += demo(t, there, trajectories)
		onNomad += demo(t, there, trajectories)
		locally += demo(t, here, trajectories)
	}
	onNomad, locally = onNomad/float64(2*rounds), locally/float64(2*rounds)
	bar(t, onNomad >= 0.9*locally, "%.0f executions/s through Nomad, %.0f locally: %.2f times as many, at least 0.9", onNomad, locally, onNomad/locally)
}

func TestAnIdlePoolAsksNomadForNothing(t *testing.T) {
	t.Parallel()
	during := 30 * time.Second
	if text := os.Getenv("BERTH_IDLE"); text != "" {
		var err error
		during, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	a := nomadtest.Start(t, nomadtest.Config{})
	p := nomadtest.NewProxy(t, a)
	o := serve(t, p.URL, "--containers", "2", "--slots", "2")
	o.settled(t, 2)
	o.await(t, "silence", func() bool { // deployments, health and so on come to an end
		time.Sleep(10 * time.Second)
		some, _ := p.Take()
		return !slices.ContainsFunc(some, func(asked string) bool { // but for the lock's
			return asked != "GET /v1/vars" && asked != "PUT /v1/var/nomad/jobs/"+job+"/duty"
		})
	})
	time.Sleep(during)
	asked, connections := p.Take()
	rate := float64(len(asked)) / during.Seconds()
	assert.LessOrEqual(t, rate, 0.2, "%q", asked)
	assert.LessOrEqual(t, connections, 2)
	bar(t, rate <= 0.2 && connections <= 2, "%d requests in %v: %.3f/s, at most 0.2; %d connections, at most 2", len(asked), during, rate, connections)
}
