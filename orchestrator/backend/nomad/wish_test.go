package nomad_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
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

// wishesOf is the variable that has what is wanted of the container, and the
// item. d.mu is held.
func (d *double) wishesOf(id string) (path, item string) {
	item = d.allocOf(backend.Container{ID: id})
	return "nomad/jobs/" + job + "/wishes/" + item[:1], item
}

func uncordon(w backend.Wish) backend.Wish {
	w.Cordoned = false
	return w
}

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
		d.do(func() {
			path, _ := d.wishesOf("c-0")
			index = d.variables[path].ModifyIndex
		})
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
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/wishes/") {
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
		var gone, stays string // two containers whose wishes are in one variable
		for ids := map[string]string{}; gone == ""; {
			id := fmt.Sprintf("c-%d", len(ids))
			_, err := b.Start(t.Context(), backend.Spec{ID: id, Template: "t", Slots: simSlots})
			require.NoError(t, err)
			var path string
			w.d.do(func() { path, _ = w.d.wishesOf(id) })
			gone, stays, ids[path] = ids[path], id, id
		}
		var path, item string
		w.d.do(func() { // what is not ours to understand, of another container, and of an allocation that is not there
			path, item = w.d.wishesOf(stays)
			w.d.index++
			w.d.variables[path] = &api.Variable{Path: path, ModifyIndex: w.d.index, Items: map[string]string{"x": "{", item: `{"drained":true,"id":"c"}`}}
		})
		time.Sleep(time.Second)
		assert.Zero(t, wishes(t, b)[stays])
		w.d.do(func() {
			w.d.index++
			w.d.variables[path] = &api.Variable{Path: path, ModifyIndex: w.d.index, Items: map[string]string{"x": "{", item: "17"}}
		})
		time.Sleep(time.Second)
		assert.Zero(t, wishes(t, b)[stays])
		items := func() (all []string) {
			w.d.do(func() { all = slices.Collect(maps.Keys(w.d.variables[path].Items)) })
			return all
		}
		for _, id := range []string{gone, stays} {
			_, err := b.Wish(t.Context(), id, cordon)
			require.NoError(t, err)
		}
		assert.Len(t, items(), 3, "who has not listed since may not know of it")
		require.NoError(t, b.Stop(t.Context(), gone, 0))
		_, err := b.Wish(t.Context(), stays, uncordon)
		require.NoError(t, err)
		assert.Equal(t, []string{"x"}, items(), "nothing is wanted of the one, and the other has ended")
		time.Sleep(time.Hour)
		_, err = b.Wish(t.Context(), stays, cordon)
		require.NoError(t, err)
		assert.Equal(t, []string{item}, items())
	})
}

func TestAThousandContainersCanBeDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 1000
		w := newWorld(t, many)
		b := open(t, w.config)
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				_, err := b.Start(t.Context(), backend.Spec{ID: fmt.Sprintf("t-%012d", i), Template: "t", Slots: simSlots})
				assert.NoError(t, err)
			})
		}
		all.Wait()
		by := time.Now().Add(time.Hour + time.Nanosecond)
		for _, c := range list(t, b) {
			_, err := b.Wish(t.Context(), c.ID, func(backend.Wish) backend.Wish {
				return backend.Wish{Cordoned: true, Drained: true, Replaced: true, By: by}
			})
			require.NoError(t, err)
		}
		drained := 0
		for _, w := range wishes(t, open(t, w.config)) {
			if w.Drained && w.By.Equal(by) {
				drained++
			}
		}
		assert.Equal(t, many, drained, "who comes later reads all of it")
	})
}
