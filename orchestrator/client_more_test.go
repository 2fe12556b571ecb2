package orchestrator_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	sandboxd "berth/sandboxd/client"
	"berth/slots"
	"berth/slots/sandbox/sandboxtest"
)

func TestTheClientFindsAnExecutionByItsID(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c, ctx := i.connect(i.url, trainerToken), t.Context()
	lease, other := i.lease(c, "a").ID, i.lease(c, "b").ID
	const id = "a/b é:?"
	first, err := c.Execute(ctx, lease, command(id, "printf one; printf two >&2; exit 3"))
	require.NoError(t, err)
	result, state, err := c.Execution(lease, id).Result(ctx, 0)
	require.NoError(t, err)
	assert.Empty(t, state)
	assert.Equal(t, first.Output, result.Output)
	assert.Equal(t, id, result.ExecutionID)
	p, total, err := c.Execution(lease, id).Output(ctx, "stdout", 1, 1)
	require.NoError(t, err)
	assert.Equal(t, "n", string(p))
	assert.Equal(t, int64(3), total)
	text := ""
	for e, err := range c.Execution(lease, id).Follow(ctx, sandboxd.Offsets{Stdout: 1, Stderr: 3}) {
		require.NoError(t, err)
		if e.Name == api.EventChunk {
			text += string(e.Chunk.Bytes())
		}
	}
	assert.Equal(t, "ne", text)

	for _, c := range []struct {
		name string
		ask  func() error
	}{
		{"another lease's", func() error { _, _, err := c.Execution(other, id).Result(ctx, 0); return err }},
		{"wait", func() error { _, err := c.Wait(ctx, lease, "unknown"); return err }},
		{"output", func() error { _, _, err := c.Execution(lease, "unknown").Output(ctx, "stdout", 0, 1); return err }},
		{"follow", func() (err error) {
			for _, err = range c.Execution(lease, "unknown").Follow(ctx, sandboxd.Offsets{}) { //nolint:revive // only the last error counts
			}
			return err
		}},
	} {
		assert.Equal(t, slots.KindNotFound, kindOf(c.ask()), c.name)
	}
}

func TestTheClientWaitsForAnExecution(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c, ctx := i.connect(i.url, trainerToken), t.Context()
	lease := i.lease(c, "a").ID
	for e, err := range c.Stream(ctx, lease, command("mine", "echo up; until [ -e go ]; do sleep 0.02; done; echo done")) {
		require.NoError(t, err)
		if e.Name == api.EventChunk {
			break // which leaves it running
		}
	}
	result, state, err := c.Execution(lease, "mine").Result(ctx, 0)
	require.NoError(t, err)
	assert.Equal(t, api.StateRunning, state)
	assert.Equal(t, "mine", result.ExecutionID)
	var waiting sync.WaitGroup
	var waited api.Result
	var failed error
	waiting.Go(func() { waited, failed = c.Wait(ctx, lease, "mine") })
	_, err = c.Files(lease).Put(ctx, "go", strings.NewReader(""), sandboxd.PutOptions{})
	require.NoError(t, err)
	waiting.Wait()
	require.NoError(t, failed)
	assert.Equal(t, "up\ndone", waited.Output)
}

// deaf passes requests on and cuts the connection off instead of passing on
// the first answer.
func deaf(t *testing.T, to string) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var copies sync.WaitGroup
	copies.Go(func() {
		for first := true; ; first = false {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			copies.Go(func() {
				_, _ = io.Copy(far, near)
				far.Close()
			})
			copies.Go(func() {
				defer near.Close()
				if first {
					_, _ = far.Read(make([]byte, 1))
					return
				}
				_, _ = io.Copy(near, far)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		copies.Wait()
	})
	return "http://" + ln.Addr().String()
}

func TestAFurtherSlotIsNotLostWithTheAnswer(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c, err := client.New(client.Config{URL: deaf(t, strings.TrimPrefix(i.url, "http://")), Token: trainerToken, Backoff: time.Millisecond})
	require.NoError(t, err)
	defer c.Close()
	lease, err := c.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: "a", Further: true})
	require.NoError(t, err)
	all, err := c.Leases(t.Context(), client.Filter{})
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Equal(t, lease.ID, all[0].ID)
}

func TestWhatIsAskedForByAKeyIsDoneOnce(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c, ctx := i.connect(i.url, trainerToken), t.Context()
	further := poolapi.LeaseRequest{Trajectory: "a", Further: true}
	lease, err := c.Keyed("slot").Acquire(ctx, further)
	require.NoError(t, err)
	again, err := c.Keyed("slot").Acquire(ctx, further)
	require.NoError(t, err)
	assert.Equal(t, lease.ID, again.ID)
	next, err := c.Acquire(ctx, further)
	require.NoError(t, err)
	assert.NotEqual(t, lease.ID, next.ID)
	_, err = c.Keyed("slot").Reset(ctx, lease.ID)
	assert.Equal(t, slots.KindConflict, kindOf(err), "it is another request")
	_, err = c.Keyed("no key").Acquire(ctx, further)
	assert.Equal(t, slots.KindBadRequest, kindOf(err))

	// A reset by a key spares what was done since it was asked for first.
	_, err = c.Keyed("reset").Reset(ctx, lease.ID)
	require.NoError(t, err)
	count := command("", "echo line >> log; wc -l < log")
	for range 2 {
		_, err = c.Keyed("reset").Reset(ctx, lease.ID)
		require.NoError(t, err)
		one, err := c.Keyed("one").Execute(ctx, lease.ID, count)
		require.NoError(t, err)
		assert.Equal(t, "1", one.Output)
		two, err := c.Keyed("two").Batch(ctx, lease.ID, []poolapi.Call{count, count})
		require.NoError(t, err)
		assert.Equal(t, "2", two[0].Output)
		assert.Equal(t, "3", two[1].Output)
	}
	// The names are those that the orchestrator gives to calls with the key.
	r := i.do(http.MethodPost, "/v1/leases/"+lease.ID+"/execute", count, key("one"))
	assert.Equal(t, "1", r.object()["output"], "%s", r.body)
	_, err = c.Keyed("one").Execute(ctx, lease.ID, command("", "echo other"))
	assert.Equal(t, slots.KindConflict, kindOf(err))
}
