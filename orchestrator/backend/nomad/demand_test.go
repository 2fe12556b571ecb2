package nomad_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/nomad"
)

func TestWhoScalesKnowsWhoWaitsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		named := func(name string) *nomad.Backend {
			c, at := w.config, *w.config.API
			at.Headers = http.Header{headerWho: {name}}
			c.API, c.Name = &at, name
			return open(t, c)
		}
		writes := func() (n int) {
			w.d.do(func() { n = w.d.requests["PUT var"] })
			return n
		}
		first := named("first")
		time.Sleep(time.Second)
		require.True(t, first.Duty("t").Held)
		second, third := named("second"), named("third")
		time.Sleep(time.Second)
		asks := func(b *nomad.Backend, n int) { b.Ask("t", backend.Demand{Waiting: n, Containers: 1}) }
		demand := func(b *nomad.Backend) (n int) {
			for _, d := range b.Duty("t").Demand {
				assert.Equal(t, 1, d.Containers)
				n += d.Waiting
			}
			return n
		}
		before := writes()
		asks(second, 0)
		time.Sleep(2 * time.Second)
		assert.Equal(t, before, writes(), "nobody waits: there is nothing to say")

		asks(second, 5)
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, 5, demand(first), "it is heard at once")
		asks(third, 2)
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, 7, demand(first))
		assert.Equal(t, 2, demand(second), "that of the others")

		before = writes()
		for n := range 100 {
			asks(second, n)
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		assert.Equal(t, 99+2, demand(first))
		assert.LessOrEqual(t, writes()-before, 7, "one write a second, however often it changes")

		asks(second, 0)
		time.Sleep(2 * time.Second)
		assert.Equal(t, 2, demand(first))
		for range 90 { // it stays so, and is said again now and then
			asks(third, 2)
			time.Sleep(time.Second)
		}
		assert.Equal(t, 2, demand(first))
		require.NoError(t, third.Close())
		time.Sleep(61 * time.Second)
		assert.Zero(t, demand(first), "who died waits no more")

		w.d.do(func() { // what is not ours to understand is nobody's demand
			w.d.index++
			w.d.variables["nomad/jobs/"+job+"/demand"] = &api.Variable{
				Path: "nomad/jobs/" + job + "/demand", ModifyIndex: w.d.index, Items: map[string]string{"a": "many", "b": "-4 9999999999", "c": "3 17 1", "d": "3 9999999999"},
			}
		})
		time.Sleep(time.Second)
		assert.Zero(t, demand(first))
		first.Ask("unknown", backend.Demand{Waiting: 3})
	})
}

func TestAClaimThatIsTheLastOfItsVariableCanBeGivenBack(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	start(t, b, "c-0")
	free := "nomad/jobs/" + job + "/containers/-"
	for range 2 {
		_, write := b.Draft("t", free)
		written, err := write(t.Context(), "", "")
		require.NoError(t, err, "Nomad takes no variable without items")
		assert.True(t, written)
	}
}
