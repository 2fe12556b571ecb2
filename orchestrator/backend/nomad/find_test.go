package nomad_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/nomad"
)

// deaf opens a backend that nothing tells of any change: its blocking queries
// wait, and its stream is silent.
func (d *double) deaf(t *testing.T) *nomad.Backend {
	t.Helper()
	c := d.named(t, "deaf")
	over := make(chan struct{})
	d.do(func() {
		d.fault = func(r *http.Request) (int, string) {
			if r.Header.Get(headerWho) == "deaf" && (strings.HasPrefix(r.URL.Path, "/v1/event") || r.URL.Query().Has("index")) {
				select {
				case <-over:
				case <-r.Context().Done():
				}
				return http.StatusServiceUnavailable, "No route to host"
			}
			return 0, ""
		}
	})
	b := open(t, c)
	t.Cleanup(func() { close(over) })
	return b
}

func TestAContainerThatNothingToldOfYetIsFound(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.config(t))
	start(t, first, "c-0")
	second := d.deaf(t)
	started := start(t, first, "c-1", "c-2")
	require.Len(t, list(t, second), 1, "it has not heard of them")
	heard := next(t, second)
	assert.Equal(t, "c-0", heard().Container.ID)
	up, err := second.Find(t.Context(), "c-1")
	require.NoError(t, err)
	assert.True(t, up)
	told := []backend.Container{heard().Container, heard().Container}
	for i := range told {
		told[i].Version, started[i].Version = 0, 0
	}
	assert.ElementsMatch(t, started, told, "and tells of it")
	up, err = second.Find(t.Context(), "c-0")
	require.NoError(t, err)
	assert.True(t, up)
}

func TestAContainerThatIsNotThereIsNotFound(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.config(t))
	start(t, first, "c-0", "c-1")
	second := d.deaf(t)
	start(t, first, "c-2")
	require.NoError(t, first.Stop(t.Context(), "c-2", 0))
	for _, id := range []string{"c-2", "none", ""} {
		up, err := second.Find(t.Context(), id)
		require.NoError(t, err)
		assert.False(t, up, id)
	}
	require.NoError(t, first.Stop(t.Context(), "c-1", 0))
	n := d.asked("GET vars")
	up, err := first.Find(t.Context(), "c-1")
	require.NoError(t, err)
	assert.False(t, up)
	assert.Equal(t, n, d.asked("GET vars"), "nothing is asked about one that is known to have ended")
}

func TestManyWhoAskForWhatIsNotThereCostOneReadingASecond(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	start(t, b, "c-0")
	n, began := d.asked("GET vars"), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				up, _ := b.Find(ctx, "none-"+string(rune('a'+i%26)))
				assert.False(t, up)
			}
		})
	}
	asking.Wait()
	assert.LessOrEqual(t, d.asked("GET vars")-n, 2+int(time.Since(began)/time.Second)*2, "the watch of variables is one of them")
}

func TestWithoutNomadNobodySaysThatAContainerIsGone(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.named(t, "alone"))
	start(t, b, "c-0")
	d.cutOff("alone")
	_, err := b.Find(t.Context(), "c-1")
	require.ErrorContains(t, err, "No route to host")
	up, err := b.Find(t.Context(), "c-0")
	require.NoError(t, err)
	assert.True(t, up, "what is known needs no Nomad")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = b.Find(ctx, "c-2")
	assert.Error(t, err)
}
