package client_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
)

// vanishing takes one request, answers with the text, which may be empty, and
// is gone: the connection is cut and no other one is made.
func vanishing(t *testing.T, answer string) *client.Client {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		ln.Close()
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		_, _ = io.WriteString(conn, answer)
	}()
	c, err := client.New(client.Config{URL: "http://" + ln.Addr().String(), Backoff: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestWhatWasSentOnceMayHaveHadItsEffect(t *testing.T) {
	t.Parallel()
	const began = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n" + `{"event":"start","execution_id":"x"}` + "\n"
	call := api.Call{SlotID: "slot_0", Tool: "bash", ExecutionID: "x"}
	last := func(c *client.Client, call api.Call) (err error) {
		for _, err = range c.Stream(context.Background(), call) { //nolint:revive // only the last error counts
		}
		return err
	}
	for name, try := range map[string]func() error{
		"execute": func() error { _, err := vanishing(t, "").Execute(t.Context(), call); return err },
		"batch":   func() error { _, err := vanishing(t, "").Batch(t.Context(), []api.Call{call}); return err },
		"batch stream": func() (err error) {
			for _, err = range vanishing(t, "").BatchStream(t.Context(), []api.Call{call}) { //nolint:revive // see above
			}
			return err
		},
		"stream":                func() error { return last(vanishing(t, ""), call) },
		"stream that has begun": func() error { return last(vanishing(t, began), call) },
		"stream without an id":  func() error { return last(vanishing(t, began), api.Call{SlotID: "slot_0", Tool: "bash"}) },
		"release": func() error {
			_, err := vanishing(t, "").Release(t.Context(), "slot_0", api.LeaseRelease{})
			return err
		},
		"execute without an id": func() error { _, err := vanishing(t, "").Execute(t.Context(), api.Call{}); return err },
	} {
		e, ok := errors.AsType[*slots.Error](try())
		require.True(t, ok, name)
		assert.Equal(t, slots.KindContainerUnreachable, e.Kind, name)
		assert.Equal(t, slots.ExecutedMaybe, e.Executed, name)
	}
}

func TestWhatWasNeverSentHasHadNone(t *testing.T) {
	t.Parallel()
	c := vanishing(t, "")
	_, err := c.Health(t.Context())
	require.Error(t, err, "that was the one request")
	_, err = c.Execute(t.Context(), api.Call{ExecutionID: "x"})
	assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
	_, err = c.Health(t.Context())
	assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
}
