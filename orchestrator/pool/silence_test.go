package pool_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/pool"
	"berth/slots"
)

// slowStop is a fleet whose containers are silent while they are stopped, which
// takes them long.
type slowStop struct{ *fleet }

func (f slowStop) Stop(ctx context.Context, id string, grace time.Duration) error {
	f.cut(id)
	if err := sleep(ctx, 20*time.Second); err != nil {
		return err
	}
	return f.fleet.Stop(ctx, id, grace)
}

// cut has nobody reach the container any more.
func (f *fleet) cut(id string) {
	f.mu.Lock()
	c := f.containers[id]
	f.mu.Unlock()
	c.set(func() { c.cut = true })
}

// words is a log.
type words struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func TestOnlyASilenceThatNobodyHasAskedForIsWarnedOf(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(t *testing.T, f *fleet, p *pool.Pools) // of container a
		warns bool
	}{
		{"it is cut off", func(_ *testing.T, f *fleet, _ *pool.Pools) { f.cut("a") }, true},
		{"it is stopped", func(t *testing.T, _ *fleet, p *pool.Pools) {
			t.Helper()
			require.NoError(t, p.Drain(t.Context(), "a", 0))
		}, false},
		{"it is stopped with leases held", func(t *testing.T, _ *fleet, p *pool.Pools) {
			t.Helper()
			acquire(t, p, "x")
			require.NoError(t, p.Drain(t.Context(), "a", time.Second))
		}, false},
		{"it is about to be stopped", func(t *testing.T, f *fleet, p *pool.Pools) {
			t.Helper()
			f.cut("a")
			require.NoError(t, p.Drain(t.Context(), "a", 0))
		}, false},
		{"it is to be stopped later, and somebody works there", func(t *testing.T, f *fleet, p *pool.Pools) {
			t.Helper()
			acquire(t, p, "x")
			require.NoError(t, p.Drain(t.Context(), "a", 0))
			pass(time.Second)
			f.cut("a")
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, log := newFleet(), &words{}
				f.add("a", "t", 2)
				p, err := pool.New(slowStop{f}, f.connect, pool.Config{
					Templates: []pool.Template{fixed()}, Log: hclog.New(&hclog.LoggerOptions{Output: log}),
				})
				require.NoError(t, err)
				t.Cleanup(func() { assert.NoError(t, p.Close()) })
				require.NoError(t, p.Ready(t.Context()))
				c.begin(t, f, p)
				pass(10 * time.Second)
				if c.warns {
					assert.Contains(t, log.String(), "container does not answer")
				} else {
					assert.NotContains(t, log.String(), "does not answer")
				}
				assert.Empty(t, f.ended(), "or its silence proved nothing")
			})
		})
	}
}

func TestAContainerIsSilentWhenNothingWasHeardOfItForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 2)
		p := open(t, f, pool.Config{Templates: []pool.Template{fixed()}, LostAfter: 20 * time.Second})
		require.NoError(t, p.Ready(t.Context()))
		acquire(t, p, "x")
		pass(time.Minute)
		never := time.Time{}
		assert.Nil(t, p.Silent("a", never), "it answers")
		f.cut("a")
		pass(15 * time.Second)
		assert.Nil(t, p.Silent("a", never), "it may yet answer")
		pass(15 * time.Second)
		silent := p.Silent("a", never)
		require.NotNil(t, silent)
		assert.Equal(t, slots.KindContainerUnreachable, silent.Kind)
		assert.Contains(t, silent.Message, "container a is silent: it did not answer for 30")
		assert.Nil(t, p.Silent("a", time.Now().Add(-15*time.Second)), "a call was answered since")
		assert.NotNil(t, p.Silent("a", time.Now().Add(-25*time.Second)))
		assert.Nil(t, p.Silent("nobody", never))
		f.containers["a"].set(func() { f.containers["a"].cut = false })
		pass(10 * time.Second)
		assert.Nil(t, p.Silent("a", never), "it answers again")
	})
}
