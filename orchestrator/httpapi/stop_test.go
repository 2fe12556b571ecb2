package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

// requireEnd waits for the end of a server, which is in order.
func requireEnd(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "it does not end")
	}
}

func TestAWaitForASlotDoesNotHoldUpTheStop(t *testing.T) {
	s, _ := newServerThatWaits(t, Config{DrainTimeout: time.Hour}, time.Hour)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()

	type answer struct {
		status int
		text   []byte
		err    error
	}
	within, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	post := func(path, body string) <-chan answer {
		answers := make(chan answer, 1)
		go func() {
			r, err := http.NewRequestWithContext(within, http.MethodPost, "http://"+ln.Addr().String()+path, strings.NewReader(body))
			if err != nil {
				answers <- answer{err: err}
				return
			}
			got, err := http.DefaultClient.Do(r)
			if err != nil {
				answers <- answer{err: err}
				return
			}
			defer got.Body.Close()
			text, err := io.ReadAll(got.Body)
			answers <- answer{got.StatusCode, text, err}
		}()
		return answers
	}
	lease := post("/v1/leases", `{"trajectory":"a","wait_s":3000}`)
	call := post("/execute", `{"trajectory_id":"b","tool":{"name":"bash","arguments":{"command":"true"}}}`)
	require.Eventually(t, func() bool { return s.Pools.Stats()[0].Queue == 2 }, patience, time.Millisecond)
	stop()

	requireEnd(t, ended)
	refused := <-lease
	require.NoError(t, refused.err)
	assert.Equal(t, http.StatusServiceUnavailable, refused.status, "%s", refused.text)
	var ours struct {
		Error struct {
			Kind      slots.Kind
			Retryable bool
		}
	}
	require.NoError(t, json.Unmarshal(refused.text, &ours))
	assert.Equal(t, slots.KindDraining, ours.Error.Kind)
	assert.True(t, ours.Error.Retryable)

	refused = <-call
	require.NoError(t, refused.err)
	assert.Equal(t, http.StatusOK, refused.status, "%s", refused.text)
	var theirs struct {
		Metadata struct {
			Kind      slots.Kind `json:"error_kind"`
			Retryable bool       `json:"retryable"`
			Executed  string     `json:"executed"`
		} `json:"metadata"`
	}
	require.NoError(t, json.Unmarshal(refused.text, &theirs))
	assert.Equal(t, slots.KindDraining, theirs.Metadata.Kind)
	assert.True(t, theirs.Metadata.Retryable)
	assert.Equal(t, "never", theirs.Metadata.Executed)
}

func TestAWaitForALocalSlotDoesNotHoldUpTheStop(t *testing.T) {
	made, _ := configured(t)
	deps, tools := made.Deps, &echoes{began: make(chan struct{}), ended: make(chan struct{})}
	deps.Metrics, deps.Tools = NewMetrics(), tools
	s := New(deps, Config{Template: "t", DrainTimeout: time.Hour})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	answered := make(chan string, 1)
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+ln.Addr().String()+"/v1/tools/run",
			strings.NewReader(`{"tool":{"name":"f","source_code":"x","source_type":"python"}}`))
		if err == nil {
			var got *http.Response
			if got, err = http.DefaultClient.Do(r); err == nil {
				defer got.Body.Close()
				text, _ := io.ReadAll(got.Body)
				answered <- got.Status + " " + string(text)
				return
			}
		}
		answered <- err.Error()
	}()
	<-tools.began
	stop()
	requireEnd(t, ended)
	got := <-answered
	assert.Contains(t, got, "503 ")
	assert.Contains(t, got, `"draining"`)
}
