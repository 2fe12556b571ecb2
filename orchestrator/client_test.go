package orchestrator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
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

func (i *instance) connect(url, token string) *client.Client {
	i.t.Helper()
	c, err := client.New(client.Config{URL: url, Token: token})
	require.NoError(i.t, err)
	i.t.Cleanup(c.Close)
	return c
}

func (i *instance) lease(c *client.Client, trajectory string) poolapi.Lease {
	i.t.Helper()
	lease, err := c.Acquire(i.t.Context(), poolapi.LeaseRequest{Trajectory: trajectory, WaitS: patience.Seconds()})
	require.NoError(i.t, err)
	return lease
}

// command is a call of bash.
func command(id, text string) poolapi.Call {
	args, err := json.Marshal(map[string]string{"command": text})
	if err != nil {
		panic(err)
	}
	return poolapi.Call{Tool: "bash", Args: args, ExecutionID: id, TimeoutS: api.Seconds(patience.Seconds())}
}

func kindOf(err error) slots.Kind {
	if err == nil {
		return ""
	}
	return slots.AsError(err).Kind
}

func TestTheClientLeasesAndReleases(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c := i.connect(i.url, trainerToken)
	ctx := t.Context()
	require.NoError(t, c.Ready(ctx))
	lease, err := c.Acquire(ctx, poolapi.LeaseRequest{Trajectory: "a", Labels: map[string]string{"run": "7"}, TTLSeconds: 60})
	require.NoError(t, err)
	assert.InDelta(t, 60, lease.TTLSeconds, 0)
	assert.Equal(t, lease.ID, i.lease(c, "a").ID)
	found, err := c.Lease(ctx, lease.ID)
	require.NoError(t, err)
	assert.Equal(t, "a", found.Trajectory)
	renewed, err := c.Renew(ctx, lease.ID, 90*time.Second)
	require.NoError(t, err)
	assert.InDelta(t, 90, renewed.TTLSeconds, 0)
	other := i.lease(c, "b")
	_, err = c.Acquire(ctx, poolapi.LeaseRequest{Trajectory: "c"})
	assert.Equal(t, slots.KindPoolExhausted, kindOf(err))

	list, err := c.Leases(ctx, client.Filter{Labels: map[string]string{"run": "7"}})
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, lease.ID, list[0].ID)
	pools, err := c.Pools(ctx)
	require.NoError(t, err)
	require.Len(t, pools, 1)
	assert.Equal(t, 2, pools[0].Slots)
	assert.Equal(t, 2, pools[0].Acquired)

	receipt, err := c.Release(ctx, lease.ID)
	require.NoError(t, err)
	require.NotNil(t, receipt)
	assert.True(t, receipt.Clean)
	_, err = c.Lease(ctx, lease.ID)
	assert.Equal(t, slots.KindNotFound, kindOf(err))
	_, err = c.Execute(ctx, lease.ID, command("", "true"))
	assert.Equal(t, slots.KindFenced, kindOf(err))
	_, err = c.Lease(ctx, "nonsense")
	assert.Equal(t, slots.KindBadRequest, kindOf(err))
	_, err = c.ReleaseAll(ctx, client.Filter{})
	assert.Equal(t, slots.KindBadRequest, kindOf(err), "never all by accident")
	released, err := c.ReleaseAll(ctx, client.Filter{Trajectory: "b"})
	require.NoError(t, err)
	require.Len(t, released, 1)
	assert.Equal(t, other.ID, released[0].Lease)
	assert.True(t, released[0].Reset.Clean)
}

func TestTheClientRunsCalls(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c := i.connect(i.url, trainerToken)
	ctx := t.Context()
	lease := i.lease(c, "a").ID
	result, err := c.Execute(ctx, lease, command("one", "echo hi; exit 3"))
	require.NoError(t, err)
	assert.Equal(t, "hi", result.Output)
	assert.Equal(t, 3, result.Metadata.ExitCode)
	assert.Equal(t, "one", result.ExecutionID)
	_, err = c.Execute(ctx, lease, poolapi.Call{Tool: "dance"})
	assert.Equal(t, slots.KindBadRequest, kindOf(err))

	batch := []poolapi.Call{command("", "echo 0 > order"), command("", "cat order"), {Tool: "dance"}}
	results, err := c.Batch(ctx, lease, batch)
	require.NoError(t, err)
	require.Len(t, results, 3)
	assert.Equal(t, "0", results[1].Output)
	require.Error(t, results[2].Err())
	seen := map[int]string{}
	for r, err := range c.BatchStream(ctx, lease, batch) {
		require.NoError(t, err)
		seen[*r.Index] = r.Output
	}
	assert.Equal(t, map[int]string{0: "", 1: "0", 2: ""}, seen)

	receipt, err := c.Reset(ctx, lease)
	require.NoError(t, err)
	assert.True(t, receipt.Clean)
	result, err = c.Execute(ctx, lease, command("", "cat order"))
	require.NoError(t, err)
	assert.False(t, result.Success, "the reset has taken it away")
}

func TestTheClientMovesFiles(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c := i.connect(i.url, trainerToken)
	ctx := t.Context()
	lease := i.lease(c, "a").ID
	files := c.Files(lease)
	put, err := files.Put(ctx, "sub/a b?.txt", strings.NewReader("content"), sandboxd.PutOptions{Mode: 0o640})
	require.NoError(t, err)
	assert.True(t, put.Created)
	st, err := files.Stat(ctx, "sub/a b?.txt")
	require.NoError(t, err)
	assert.Equal(t, int64(7), st.Size)
	assert.Equal(t, uint32(0o640), st.Mode)
	_, err = files.Stat(ctx, "sub")
	assert.Equal(t, slots.KindBadRequest, kindOf(err), "a directory is no file")
	_, err = files.Stat(ctx, "nothing")
	assert.Equal(t, slots.KindNotFound, kindOf(err))
	_, err = files.Get(ctx, "../../etc/passwd", sandboxd.GetOptions{})
	assert.Equal(t, slots.KindDenied, kindOf(err))
	f, err := files.Get(ctx, "sub/a b?.txt", sandboxd.GetOptions{Offset: 3, SHA256: true})
	require.NoError(t, err)
	text, err := io.ReadAll(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	assert.Equal(t, "tent", string(text))

	tree, err := files.GetTar(ctx, "sub", true)
	require.NoError(t, err)
	packed, err := io.ReadAll(tree)
	require.NoError(t, err)
	require.NoError(t, tree.Close())
	unpacked, err := files.PutTar(ctx, "copy", bytes.NewReader(packed))
	require.NoError(t, err)
	assert.Equal(t, int64(7), unpacked.Bytes)

	odd, err := c.Execute(ctx, lease, poolapi.Call{Tool: "bash", Args: json.RawMessage(`{"command":"mkdir odd; mkfifo odd/pipe"}`)})
	require.NoError(t, err)
	require.True(t, odd.Success, odd.Error)
	tree, err = files.GetTar(ctx, "odd", false)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, tree)
	require.NoError(t, err)
	require.NoError(t, tree.Close())
	assert.Equal(t, 1, tree.Omitted(), "a short answer tells it as well")

	read, err := c.ReadArtifact(ctx, lease, api.ReadRequest{Path: "copy/a b?.txt"})
	require.NoError(t, err)
	assert.Equal(t, "content", read.Content)
	list, err := c.ListArtifacts(ctx, lease, api.ListRequest{Path: "copy"})
	require.NoError(t, err)
	assert.Len(t, list.Entries, 1)
	archive, err := c.ArchiveArtifacts(ctx, lease, api.ArchiveRequest{Path: "copy"})
	require.NoError(t, err)
	assert.Positive(t, archive.EntryCount)
	_, err = c.ReadArtifact(ctx, lease, api.ReadRequest{Path: "nothing"})
	assert.Equal(t, slots.KindNotFound, kindOf(err))
}

func TestTheClientOperatesContainers(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c, ctx := i.connect(i.url, operatorToken), t.Context()
	all, err := c.Containers(ctx)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Len(t, all[0].Slots, 2)
	id := all[0].ID
	_, err = i.connect(i.url, trainerToken).Drain(ctx, id, 0)
	assert.Equal(t, slots.KindDenied, kindOf(err))
	_, err = i.connect(i.url, "wrong").Containers(ctx)
	assert.Equal(t, slots.KindUnauthorized, kindOf(err))
	assert.False(t, client.Unreachable(err))

	got, err := c.Cordon(ctx, id, true)
	require.NoError(t, err)
	assert.Equal(t, "cordoned", got.State)
	got, err = c.Cordon(ctx, id, false)
	require.NoError(t, err)
	assert.Equal(t, "ready", got.State)
	i.lease(c, "a") // so that it stays there
	got, err = c.Recycle(ctx, id, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, "draining", got.State)
	_, err = c.Drain(ctx, "nobody", 0)
	assert.Equal(t, slots.KindNotFound, kindOf(err))
}

func TestTheClientTellsAServerThatIsNotThere(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url := "http://" + ln.Addr().String()
	require.NoError(t, ln.Close())
	c, err := client.New(client.Config{URL: url, Backoff: time.Millisecond})
	require.NoError(t, err)
	_, err = c.Pools(t.Context())
	require.ErrorContains(t, err, "call orchestrator")
	assert.True(t, client.Unreachable(err))
	assert.False(t, client.Unreachable(slots.Errorf(slots.KindContainerUnreachable, "container x did not answer")))
	assert.False(t, client.Unreachable(nil))
	_, err = client.New(client.Config{URL: "nonsense"})
	require.ErrorContains(t, err, "no http URL")
}

// weakLink passes connections on and cuts those off that are open.
type weakLink struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (w *weakLink) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// listen passes what comes on to the address, until the test's end.
func (w *weakLink) listen(t *testing.T, to string) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var copies sync.WaitGroup
	copies.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			for _, ends := range [][2]net.Conn{{near, far}, {far, near}} {
				copies.Go(func() {
					_, _ = io.Copy(ends[0], ends[1])
					_ = ends[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		w.cut()
		copies.Wait()
	})
	return "http://" + ln.Addr().String()
}

func TestAStreamOfTheClientGoesOnWhereItBroke(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	var link weakLink
	c := i.connect(link.listen(t, strings.TrimPrefix(i.url, "http://")), trainerToken)
	direct := i.connect(i.url, trainerToken)
	lease := i.lease(direct, "a").ID
	text, starts := "", 0
	var last api.Event
	for e, err := range c.Stream(t.Context(), lease, command("mine", "echo one; until [ -e go ]; do sleep 0.02; done; echo two")) {
		require.NoError(t, err)
		switch e.Name {
		case api.EventStart:
			starts++
			assert.Equal(t, "mine", e.Start.ExecutionID)
		case api.EventChunk:
			if text += string(e.Chunk.Bytes()); text == "one\n" {
				link.cut()
				_, err := direct.Files(lease).Put(t.Context(), "go", strings.NewReader(""), sandboxd.PutOptions{})
				require.NoError(t, err)
			}
		default:
		}
		last = e
	}
	assert.Equal(t, "one\ntwo\n", text, "no byte is missing, and none came twice")
	assert.Equal(t, 1, starts)
	require.Equal(t, api.EventResult, last.Name)
	assert.True(t, last.Result.Success, last.Result.Error)
}

func TestACancelEndsTheExecution(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c, ctx := i.connect(i.url, trainerToken), t.Context()
	lease, other := i.lease(c, "a").ID, i.lease(c, "b").ID
	const id = "a name/with ümlauts"
	for e, err := range c.Stream(ctx, lease, command(id, "echo up; sleep 1000")) {
		require.NoError(t, err)
		switch e.Name {
		case api.EventChunk:
			_, _, err := c.Cancel(ctx, other, id)
			assert.Equal(t, slots.KindNotFound, kindOf(err), "it is not of that lease")
			require.ErrorContains(t, err, id)
			result, state, err := c.Cancel(ctx, lease, id)
			require.NoError(t, err)
			assert.Empty(t, state)
			assert.Equal(t, id, result.ExecutionID)
		case api.EventResult:
			assert.Equal(t, slots.OutcomeCancelled, e.Result.Metadata.Outcome)
		default:
		}
	}
	again, _, err := c.Cancel(ctx, lease, id)
	require.NoError(t, err, "twice is once")
	assert.Equal(t, slots.OutcomeCancelled, again.Metadata.Outcome)
	_, _, err = c.Cancel(ctx, lease, "unknown")
	assert.Equal(t, slots.KindNotFound, kindOf(err))
}

func TestAStreamThatIsLeftEndsItsExecutionIfToldTo(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c := i.connect(i.url, trainerToken)
	lease := i.lease(c, "a").ID
	leave := func(call poolapi.Call) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for e, err := range c.Stream(ctx, lease, call) {
			if err != nil {
				break
			}
			if e.Name == api.EventChunk {
				cancel()
			}
		}
	}
	stays, ends := command("stays", "echo up; sleep 1"), command("ends", "echo up; sleep 1000")
	ends.CancelStarted = true
	for want, call := range map[slots.Outcome]poolapi.Call{slots.OutcomeExited: stays, slots.OutcomeCancelled: ends} {
		leave(call)
		for e, err := range c.Stream(t.Context(), lease, call) { // joins it
			require.NoError(t, err)
			if e.Name == api.EventResult {
				require.NotNil(t, e.Result.Metadata.Receipt, e.Result.Error)
				assert.Equal(t, want, e.Result.Metadata.Outcome)
			}
		}
	}
}

func TestAHeldLeaseIsRenewedAndItsEndIsTold(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	c, ctx := i.connect(i.url, trainerToken), t.Context()
	lease, err := c.Acquire(ctx, poolapi.LeaseRequest{Trajectory: "a", TTLSeconds: 12})
	require.NoError(t, err)
	held, done := c.Hold(ctx, lease)
	require.Eventually(t, func() bool {
		now, err := c.Lease(ctx, lease.ID)
		return err == nil && now.ExpiresAt.After(lease.ExpiresAt)
	}, patience, 50*time.Millisecond)
	require.NoError(t, held.Err())
	_, err = c.Release(ctx, lease.ID)
	require.NoError(t, err)
	select {
	case <-held.Done():
	case <-time.After(patience):
		require.Fail(t, "nobody was told")
	}
	assert.Equal(t, slots.KindFenced, kindOf(context.Cause(held)))
	done()

	held, done = c.Hold(ctx, i.lease(c, "b"))
	done()
	require.ErrorIs(t, held.Err(), context.Canceled)
}
