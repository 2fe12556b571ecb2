package nomad_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/nomad"
	"berth/slots"
)

const wishesPath = "nomad/jobs/" + job + "/wishes"

func cordon(w backend.Wish) backend.Wish {
	w.Cordoned = true
	return w
}

func wishes(t *testing.T, b *nomad.Backend) map[string]backend.Wish {
	t.Helper()
	all := map[string]backend.Wish{}
	for _, c := range list(t, b) {
		all[c.ID] = c.Wish
	}
	return all
}

func TestWhatIsWantedOfAContainerIsKnownToAllOrchestrators(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.named(t, "first"))
	start(t, first, "c-0", "c-1")
	second := open(t, d.named(t, "second"))
	by := time.Now().Add(time.Hour)
	drain := func(w backend.Wish) backend.Wish {
		w.Drained, w.By = true, by
		return w
	}
	kept, err := second.Wish(t.Context(), "c-0", drain)
	require.NoError(t, err)
	assert.True(t, kept.Wish.Drained)
	assert.WithinDuration(t, by, kept.Wish.By, 0)
	require.Eventually(t, func() bool { return wishes(t, first)["c-0"] == kept.Wish }, patience, time.Millisecond)
	assert.Zero(t, wishes(t, first)["c-1"])
	assert.False(t, list(t, first)[0].Draining, "its machine is not")

	var both sync.WaitGroup // of one container, at once
	for _, b := range []*nomad.Backend{first, second} {
		both.Go(func() {
			for _, change := range []func(backend.Wish) backend.Wish{cordon, drain} {
				if _, err := b.Wish(t.Context(), "c-1", change); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
	third := open(t, d.named(t, "third"))
	assert.Equal(t, map[string]backend.Wish{"c-0": kept.Wish, "c-1": {Cordoned: true, Drained: true, By: kept.Wish.By}}, wishes(t, third), "who comes later knows as well")
	written := func() (index uint64) {
		d.do(func() { index = d.variables[wishesPath].ModifyIndex })
		return index
	}
	before := written()
	again, err := third.Wish(t.Context(), "c-0", drain)
	require.NoError(t, err)
	assert.Equal(t, kept.Wish, again.Wish)
	assert.Contains(t, list(t, third), again)
	assert.Equal(t, before, written(), "there is nothing new to write")
}

func TestWhatCannotBeWrittenIsNotWanted(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.named(t, "first"))
	start(t, b, "c-0")
	_, err := b.Wish(t.Context(), "c-1", cordon)
	assert.Equal(t, slots.KindNotFound, slots.AsError(err).Kind)
	d.do(func() {
		d.fault = func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/wishes") {
				return http.StatusForbidden, "Permission denied"
			}
			return 0, ""
		}
	})
	_, err = b.Wish(t.Context(), "c-0", cordon)
	assert.Equal(t, slots.KindInternal, slots.AsError(err).Kind)
	require.ErrorContains(t, err, "Permission denied")
	d.do(func() { d.fault = nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Wish(ctx, "c-0", cordon)
	require.Error(t, err)
	assert.Zero(t, wishes(t, b)["c-0"])
}

func TestWhatWasWantedOfContainersThatAreGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		b := open(t, w.config)
		for _, id := range []string{"c-0", "c-1", "c-2"} {
			_, err := b.Start(t.Context(), backend.Spec{ID: id, Template: "t", Slots: simSlots})
			require.NoError(t, err)
		}
		w.d.do(func() { // what is not ours to understand, of a container that is not there
			w.d.index++
			w.d.variables[wishesPath] = &api.Variable{Path: wishesPath, ModifyIndex: w.d.index, Items: map[string]string{"x": "{", "c-2": "17"}}
		})
		time.Sleep(time.Second)
		assert.Zero(t, wishes(t, b)["c-2"])
		for _, id := range []string{"c-0", "c-1"} {
			_, err := b.Wish(t.Context(), id, cordon)
			require.NoError(t, err)
		}
		require.NoError(t, b.Stop(t.Context(), "c-0", 0))
		items := func() (ids []string) {
			w.d.do(func() {
				for id := range w.d.variables[wishesPath].Items {
					ids = append(ids, id)
				}
			})
			return ids
		}
		assert.ElementsMatch(t, []string{"c-0", "c-1", "c-2"}, items())
		time.Sleep(time.Hour)
		_, err := b.Wish(t.Context(), "c-2", cordon)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{"c-1", "c-2"}, items(), "that of a container that is there stays, however old it is")
	})
}
