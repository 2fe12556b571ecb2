package client

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

func bash(id, command string) api.Call {
	return api.Call{SlotID: "slot_0", Tool: "bash", Args: []byte(`{"command":"` + command + `"}`), ExecutionID: id}
}

func kind(t *testing.T, err error) slots.Kind {
	t.Helper()
	e, ok := errors.AsType[*slots.Error](err)
	require.True(t, ok, "%T %v", err, err)
	return e.Kind
}

func TestNewRefusesWhatIsNoAddress(t *testing.T) {
	for _, address := range []string{"", "10.0.0.1:80", "ftp://x", "http://", "http://\x00"} {
		_, err := New(Config{URL: address})
		assert.Error(t, err, address)
	}
}

func TestACallRunsAndItsResultComesBack(t *testing.T) {
	f := start(t)
	r, err := f.Execute(t.Context(), bash("e1", "say hello"))
	require.NoError(t, err)
	assert.Equal(t, "hello", r.Output)
	assert.Equal(t, "e1", r.ExecutionID)
	require.NotNil(t, r.Metadata.Receipt)
	assert.InDelta(t, 1, r.Metadata.SpawnMS, 0.01)

	r, err = f.Execute(t.Context(), bash("", "exit"))
	require.NoError(t, err, "a command that fails is no error of the call")
	assert.Equal(t, "Exit code: 3", r.Error)

	r, err = f.Execute(t.Context(), api.Call{SlotID: "slot_9", Tool: "bash"})
	assert.Equal(t, slots.KindNotFound, kind(t, err))
	require.EqualError(t, err, "Unknown slot: slot_9")
	assert.Equal(t, err.Error(), r.Error, "the result is there as well")
	_, err = f.Execute(t.Context(), bash("e1", "say other"))
	assert.Equal(t, slots.KindConflict, kind(t, err))
}

func TestABatchKeepsTheOrderOfItsCalls(t *testing.T) {
	f := start(t)
	results, err := f.Batch(t.Context(), []api.Call{bash("", "say a"), {SlotID: "x"}, bash("", "say b")})
	require.NoError(t, err)
	require.Len(t, results, 3)
	assert.Equal(t, "a", results[0].Output)
	assert.Equal(t, slots.KindNotFound, kind(t, results[1].Err()))
	assert.Equal(t, "b", results[2].Output)
	results, err = f.Batch(t.Context(), nil)
	require.NoError(t, err)
	assert.Empty(t, results)
}

func TestACutConnectionRunsANamedCallOnceAndAnswersIt(t *testing.T) {
	f := start(t)
	f.cut(2, 20)
	r, err := f.Execute(t.Context(), bash("once", "say hello"))
	require.NoError(t, err)
	assert.Equal(t, "hello", r.Output)
	assert.EqualValues(t, 1, f.runs.Load())
}

func TestACutConnectionFailsAnUnnamedCallAndSaysMaybe(t *testing.T) {
	f := start(t)
	f.cut(1, 20)
	_, err := f.Execute(t.Context(), bash("", "say hello"))
	assert.Equal(t, slots.KindContainerUnreachable, kind(t, err))
	assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
	assert.False(t, slots.AsError(err).Retryable)
	assert.EqualValues(t, 1, f.runs.Load())
}

func TestAContainerThatIsNotThereRanNothing(t *testing.T) {
	c, err := New(Config{URL: "http://127.0.0.1:1", Retries: -1})
	require.NoError(t, err)
	_, err = c.Execute(t.Context(), bash("", "say x"))
	assert.Equal(t, slots.KindContainerUnreachable, kind(t, err))
	assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
	assert.True(t, slots.AsError(err).Retryable)
}

func TestAStreamIsWholeOverCutConnections(t *testing.T) {
	f := start(t)
	var want strings.Builder
	for i := range 300 {
		want.WriteString("line " + strconv.Itoa(i) + "\n")
	}
	for name, cuts := range map[string]int64{"none": 0, "some": 4} {
		t.Run(name, func(t *testing.T) {
			f.cut(cuts, 4000) // room for one chunk, and not for the result
			var got strings.Builder
			var names []api.EventName
			for e, err := range f.Stream(t.Context(), bash("stream-"+name, "count 300")) {
				require.NoError(t, err)
				names = append(names, e.Name)
				if e.Chunk != nil && e.Chunk.Stream == "stdout" {
					require.EqualValues(t, got.Len(), e.Chunk.Offset)
					got.Write(e.Chunk.Bytes())
				}
			}
			assert.Equal(t, want.String(), got.String())
			assert.Equal(t, api.EventStart, names[0])
			assert.Equal(t, api.EventResult, names[len(names)-1])
			assert.NotContains(t, names[1:], api.EventStart, "the start is told once")
		})
	}
	assert.EqualValues(t, 2, f.runs.Load())
	var all int
	for e, err := range f.Follow(t.Context(), "stream-none", Offsets{Stdout: int64(want.Len()) - 3}) {
		require.NoError(t, err)
		if e.Chunk != nil && e.Chunk.Stream == "stdout" {
			all += len(e.Chunk.Bytes())
		}
	}
	assert.Equal(t, 3, all)
}

func TestAStreamThatCannotGoOnEndsWithAnError(t *testing.T) {
	f := start(t)
	var last error
	for _, err := range f.Follow(t.Context(), "unknown", Offsets{}) {
		last = err
	}
	assert.Equal(t, slots.KindNotFound, kind(t, last))
	f.cut(100, 10)
	last = nil
	for _, err := range f.Stream(t.Context(), bash("", "say x")) {
		last = err
	}
	assert.Equal(t, slots.KindContainerUnreachable, kind(t, last))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	for _, err := range f.Stream(ctx, bash("", "say x")) {
		last = err
	}
	assert.ErrorContains(t, last, "enough")
}

func TestAStreamedBatchIsWholeOverCutConnections(t *testing.T) {
	f := start(t)
	var calls []api.Call
	for i := range 20 {
		calls = append(calls, bash("batch-"+strconv.Itoa(i), "say "+strconv.Itoa(i)))
	}
	f.cut(5, 3000)
	got := map[int]string{}
	for r, err := range f.BatchStream(t.Context(), calls) {
		require.NoError(t, err)
		require.NotContains(t, got, *r.Index)
		got[*r.Index] = r.Output
	}
	require.Len(t, got, 20)
	for i := range 20 {
		assert.Equal(t, strconv.Itoa(i), got[i])
	}
	assert.EqualValues(t, 20, f.runs.Load())
	for _, err := range f.BatchStream(t.Context(), calls) {
		require.NoError(t, err)
		break // leaving early is fine
	}
	f.cut(1, 100)
	var last error
	for _, err := range f.BatchStream(t.Context(), []api.Call{bash("", "say x")}) {
		last = err
	}
	assert.Equal(t, slots.KindContainerUnreachable, kind(t, last))
}

func TestAnExecutionIsFollowedAndCancelled(t *testing.T) {
	f := start(t)
	ended := make(chan api.Result, 1)
	go func() {
		r, err := f.Execute(context.WithoutCancel(t.Context()), bash("w", "wait"))
		if err == nil || r.ExecutionID != "" {
			ended <- r
		}
	}()
	require.Eventually(t, func() bool { // it runs before it says something
		_, total, err := f.Output(t.Context(), "w", "stdout", 0, 0)
		return err == nil && total == 7
	}, 30*time.Second, time.Millisecond)
	_, state, err := f.Result(t.Context(), "w")
	require.NoError(t, err)
	assert.Equal(t, api.StateRunning, state)
	p, _, err := f.Output(t.Context(), "w", "stdout", 2, 3)
	require.NoError(t, err)
	assert.Equal(t, "iti", string(p))
	r, state, err := f.Cancel(t.Context(), "w")
	require.NoError(t, err)
	assert.Empty(t, state)
	assert.False(t, r.Success)
	<-ended
	r, state, err = f.Result(t.Context(), "w")
	require.NoError(t, err)
	assert.Empty(t, state)
	assert.Equal(t, "w", r.ExecutionID)
	_, _, err = f.Result(t.Context(), "a/b %2f?")
	assert.Equal(t, slots.KindNotFound, kind(t, err))
	assert.ErrorContains(t, err, "a/b %2f?", "the id arrives as it is")
}

func TestSlotsAreLeasedAndReset(t *testing.T) {
	f := start(t)
	h, err := f.Health(t.Context())
	require.NoError(t, err)
	assert.Equal(t, api.HealthOK, h.Status)
	list, err := f.Slots(t.Context())
	require.NoError(t, err)
	assert.Len(t, list, 2)

	lease, err := f.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "t", TTLSeconds: 60})
	require.NoError(t, err)
	_, err = f.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "t"})
	assert.Equal(t, slots.KindConflict, kind(t, err))
	_, err = f.Execute(t.Context(), bash("", "say x"))
	assert.Equal(t, slots.KindFenced, kind(t, err))
	call := bash("", "say x")
	call.Token = &lease.Token
	_, err = f.Execute(t.Context(), call)
	require.NoError(t, err)
	renewed, err := f.Renew(t.Context(), "slot_0", api.LeaseRenewal{Token: lease.Token, TTLSeconds: 120})
	require.NoError(t, err)
	assert.Equal(t, 2*time.Minute, renewed.TTL)
	_, err = f.AcquireAny(t.Context(), api.LeaseRequest{Trajectory: "u"})
	require.NoError(t, err)
	_, err = f.AcquireAny(t.Context(), api.LeaseRequest{Trajectory: "v"})
	assert.Equal(t, slots.KindPoolExhausted, kind(t, err))
	leases, err := f.Leases(t.Context())
	require.NoError(t, err)
	assert.Len(t, leases, 2)

	_, err = f.Reset(t.Context(), "slot_0", nil)
	assert.Equal(t, slots.KindFenced, kind(t, err))
	receipt, err := f.Reset(t.Context(), "slot_0", &lease.Token)
	require.NoError(t, err)
	assert.True(t, receipt.Clean)
	proof, err := f.Release(t.Context(), "slot_0", api.LeaseRelease{Token: lease.Token})
	require.NoError(t, err)
	require.NotNil(t, proof)
	assert.Greater(t, proof.Generation, receipt.Generation)

	f.resetBy.Store(true)
	receipt, err = f.Reset(t.Context(), "slot_0", nil)
	assert.Equal(t, slots.KindResetFailed, kind(t, err))
	assert.False(t, receipt.Clean)
	assert.NotEmpty(t, receipt.Checks)
}

func TestFilesTravelBothWays(t *testing.T) {
	f := start(t)
	at := Place{SlotID: "slot_0", Path: "dir/a b%2f?#ü.txt"}
	sum := sha256.Sum256([]byte("0123456789"))
	put, err := f.PutFile(t.Context(), at, strings.NewReader("0123456789"), PutOptions{Length: 10, Mode: 0o600, SHA256: hex.EncodeToString(sum[:])})
	require.NoError(t, err)
	assert.True(t, put.Created)
	assert.Equal(t, at.Path, put.Path, "the name arrives as it is")

	file, err := f.GetFile(t.Context(), at, GetOptions{Offset: 2, Length: 3, SHA256: true})
	require.NoError(t, err)
	text, err := io.ReadAll(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	assert.Equal(t, "234", string(text))
	assert.EqualValues(t, 10, file.Size)
	assert.EqualValues(t, 3, file.Length)
	assert.EqualValues(t, 0o600, file.Mode)
	assert.Equal(t, put.SHA256, file.SHA256)

	_, err = f.PutFile(t.Context(), at, strings.NewReader("x"), PutOptions{IfMatch: strings.Repeat("0", 64)})
	assert.Equal(t, slots.KindConflict, kind(t, err))
	_, err = f.PutFile(t.Context(), at, strings.NewReader("x"), PutOptions{SHA256: put.SHA256})
	assert.Equal(t, slots.KindBadRequest, kind(t, err))
	_, err = f.GetFile(t.Context(), Place{SlotID: "slot_0", Path: "../../etc/passwd"}, GetOptions{})
	assert.Equal(t, slots.KindDenied, kind(t, err))
	_, err = f.GetFile(t.Context(), at, GetOptions{IfMatch: strings.Repeat("0", 64)})
	assert.Equal(t, slots.KindConflict, kind(t, err))
	_, err = f.GetFile(t.Context(), at, GetOptions{Offset: 11})
	assert.Equal(t, slots.KindBadRequest, kind(t, err))
	wrong := uint64(7)
	_, err = f.GetFile(t.Context(), Place{SlotID: "slot_0", Path: at.Path, Token: &wrong}, GetOptions{})
	assert.Equal(t, slots.KindFenced, kind(t, err))

	tree, err := f.GetTar(t.Context(), Place{SlotID: "slot_0", Path: "dir"}, true)
	require.NoError(t, err)
	packed, err := io.ReadAll(tree)
	require.NoError(t, err)
	require.NoError(t, tree.Close())
	unpacked, err := f.PutTar(t.Context(), Place{SlotID: "slot_1", Path: "copy"}, bytes.NewReader(packed))
	require.NoError(t, err)
	assert.EqualValues(t, 10, unpacked.Bytes)
	tree, err = f.GetTar(t.Context(), Place{SlotID: "slot_1", Path: "copy"}, false)
	require.NoError(t, err)
	defer func() { _ = tree.Close() }()
	_, err = tar.NewReader(tree).Next()
	require.NoError(t, err)
}

func TestArtifactsAreReadListedAndPacked(t *testing.T) {
	f := start(t)
	_, err := f.PutFile(t.Context(), Place{SlotID: "slot_0", Path: "f"}, strings.NewReader("hello"), PutOptions{})
	require.NoError(t, err)
	read, err := f.ReadArtifact(t.Context(), api.ReadRequest{SlotID: "slot_0", Path: "f"})
	require.NoError(t, err)
	assert.Equal(t, "hello", read.Content)
	list, err := f.ListArtifacts(t.Context(), api.ListRequest{SlotID: "slot_0"})
	require.NoError(t, err)
	assert.Len(t, list.Entries, 1)
	packed, err := f.ArchiveArtifacts(t.Context(), api.ArchiveRequest{SlotID: "slot_0"})
	require.NoError(t, err)
	assert.NotEmpty(t, packed.Content)
	small := int64(1)
	_, err = f.ArchiveArtifacts(t.Context(), api.ArchiveRequest{SlotID: "slot_0", MaxBytes: &small})
	assert.Equal(t, slots.KindTooLarge, kind(t, err))
	_, err = f.ReadArtifact(t.Context(), api.ReadRequest{SlotID: "slot_0", Path: "nope"})
	assert.EqualError(t, err, "Not found: nope")
}

func TestOneConnectionServesManyRequests(t *testing.T) {
	f := start(t)
	for range 20 {
		_, err := f.Execute(t.Context(), bash("", "count 100"))
		require.NoError(t, err)
		_, err = f.ReadArtifact(t.Context(), api.ReadRequest{SlotID: "slot_0", Path: "nope"})
		require.Error(t, err)
	}
	assert.EqualValues(t, 1, f.proxy.accepted.Load())
}

func TestAWrongTokenIsUnauthorized(t *testing.T) {
	f := start(t)
	c, err := New(Config{URL: f.origin.String(), Token: "wrong"})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Slots(t.Context())
	assert.Equal(t, slots.KindUnauthorized, kind(t, err))
	_, err = c.Execute(t.Context(), bash("", "say x"))
	assert.Equal(t, slots.KindUnauthorized, kind(t, err))
	_, err = c.ReadArtifact(t.Context(), api.ReadRequest{})
	assert.Equal(t, slots.KindUnauthorized, kind(t, err))
	_, err = c.Health(t.Context())
	require.NoError(t, err)
	assert.Zero(t, f.runs.Load())
}

func TestEveryKindComesBackAsItWasSent(t *testing.T) {
	for _, k := range slots.Kinds() {
		sent := slots.Errorf(k, "because")
		for name, body := range map[string]any{
			"ours": api.NewErrorAnswer(sent), "artifact": api.NewArtifactFailure(sent), "result": api.Refused("id", sent),
		} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(k.Status())
				_, _ = w.Write(encode(t, body))
			}))
			c, err := New(Config{URL: server.URL})
			require.NoError(t, err)
			_, err = c.Slots(t.Context())
			c.Close()
			server.Close()
			assert.Equal(t, sent, slots.AsError(err), "%s %s", k, name)
		}
	}
}

func TestAnAnswerOfAStrangerGetsTheKindOfItsStatus(t *testing.T) {
	for status, want := range map[int]slots.Kind{
		400: slots.KindBadRequest, 401: slots.KindUnauthorized, 404: slots.KindNotFound, 413: slots.KindTooLarge,
		418: slots.KindBadRequest, 502: slots.KindContainerUnreachable, 507: slots.KindInternal,
	} {
		err := (&Client{}).refusal(status, []byte("<html>"))
		assert.Equal(t, want, kind(t, err), status)
	}
}

func FuzzRefusal(f *testing.F) {
	f.Add(409, []byte(`{"error":{"kind":"fenced","message":"x"}}`))
	f.Add(404, []byte(`{"success":false,"error":"x","error_kind":"not_found"}`))
	f.Add(500, []byte(`[]`))
	f.Fuzz(func(t *testing.T, status int, text []byte) {
		if (&Client{}).refusal(status, text) == nil {
			t.Fatal("a refusal is an error")
		}
	})
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return text
}
