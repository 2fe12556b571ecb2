package httpapi

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/slots"
)

func TestABatchIsGivenUpFromItsEnd(t *testing.T) {
	registry, err := execution.Open(execution.Config{})
	require.NoError(t, err)
	defer registry.Close()
	running := make([]pending, 20_000)
	for i := range running {
		if i%1000 == 7 {
			continue // one that was refused
		}
		e, _, err := registry.Begin(t.Context(), strconv.Itoa(i), [32]byte{})
		require.NoError(t, err)
		running[i].execution = e
	}
	// A slot begins with the next call as soon as the one before it is gone.
	var over atomic.Bool
	var early atomic.Int32
	var watching sync.WaitGroup
	watching.Go(func() {
		for !over.Load() {
			before := false
			for _, p := range running {
				if p.execution == nil {
					continue
				}
				gone := p.execution.Context().Err() != nil
				if before && !gone {
					early.Add(1)
				}
				before = gone
			}
		}
	})
	leave(running)
	over.Store(true)
	watching.Wait()
	assert.Zero(t, early.Load())
	require.Error(t, running[0].execution.Context().Err())
}

func TestAStreamedBatchTellsOfEveryCallWhenTheServerStops(t *testing.T) {
	c := start(t, Config{Token: testToken, ShutdownTimeout: 50 * time.Millisecond})
	release := make(chan struct{})
	defer close(release)
	c.run = func(_ context.Context, call api.Call, _, _ io.Writer) api.Result {
		if call.ExecutionID != "quick" {
			<-release
		}
		return ran("")
	}
	body := "[" + strings.Join([]string{call("slow"), call("quick"), `{"slot_id":"slot_9","tool":"bash"}`, call("slower")}, ",") + "]"
	res := c.open(t, http.MethodPost, "/batch", body, api.TypeNDJSON)
	require.Eventually(t, func() bool { return c.server.conns.count() >= 1 }, 30*time.Second, time.Millisecond)
	c.stop()
	text, err := io.ReadAll(res.body)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, lines, 4, "%s", text)
	for _, line := range lines {
		switch {
		case strings.Contains(line, `"index":0`), strings.Contains(line, `"index":3`):
			assert.Contains(t, line, string(slots.KindInterrupted))
		case strings.Contains(line, `"index":1`):
			assert.Contains(t, line, `"success":true`)
		default:
			assert.Contains(t, line, "Unknown slot")
		}
	}
}
