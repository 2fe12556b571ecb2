package pool_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/pool"
	"berth/slots"
)

// refuses has the fleet refuse starts with the error from now on, or none.
func (f *fleet) refuses(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = err
}

// starts counts what a pool tells of its starts.
type starts struct {
	pool.Observer
	mu    sync.Mutex
	kinds map[slots.Kind]int
}

func (s *starts) Started(_ string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[kind(err)]++
}
func (s *starts) Scaled(string, int, int)               {}
func (s *starts) Acquired(string, time.Duration, error) {}

func TestWhoWaitsInVainHearsWhyNoContainerStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, told := newFleet(), &starts{kinds: map[slots.Kind]int{}}
		f.refuses(slots.Errorf(slots.KindPoolExhausted, "start container t-x: Dimension %q exhausted\n\ton 3 nodes", "memory"))
		p := open(t, f, pool.Config{Templates: []pool.Template{scaled(1, 1)}, Observer: told})
		short := ask(t.Context(), p, pool.Request{Trajectory: "x", Wait: 500 * time.Millisecond})
		pass(600 * time.Millisecond)
		assert.Equal(t, slots.KindPoolExhausted, kind(short.err))
		require.EqualError(t, short.err, "no slot of pool t is free: place 1 of 1 in the queue after 500ms; "+
			"the last container did not start 500ms ago (failures in a row: 1; the next is tried in 500ms): "+
			`start container t-x: Dimension "memory" exhausted on 3 nodes`)
		pass(10 * time.Second)
		s := p.Stats()[0].Trouble
		assert.Equal(t, 4, s.Failed, "at once, and 1, 2 and 4 s later")
		assert.Equal(t, 8*time.Second, s.Next.Sub(s.At))
		assert.Equal(t, `start container t-x: Dimension "memory" exhausted on 3 nodes`, s.Words)
		assert.Equal(t, map[slots.Kind]int{slots.KindPoolExhausted: 4}, told.kinds)
		_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "y"})
		require.ErrorContains(t, err, "failures in a row: 4", "also who does not wait")

		f.refuses(nil)
		pass(20 * time.Second)
		assert.Zero(t, p.Stats()[0].Trouble)
		assert.Equal(t, 1, told.kinds[""])
		acquire(t, p, "y")
		acquire(t, p, "z")
		_, err = p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "w", Wait: time.Second})
		assert.EqualError(t, err, "no slot of pool t is free: place 1 of 1 in the queue after 1s", "it is full, and that is all")
	})
}

func TestWordsAreBoundedAndNothingIsKeptOfWhatFailedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.refuses(slots.Errorf(slots.KindInternal, "%s", strings.Repeat("ü ", 100_000)))
		p := open(t, f, pool.Config{Templates: []pool.Template{scaled(1, 1)}})
		pass(time.Second)
		assert.Len(t, []rune(p.Stats()[0].Trouble.Words), 1000)
		f.refuses(slots.Errorf(slots.KindBadRequest, "the image has no name"))
		pass(5 * time.Second)
		assert.Equal(t, "the image has no name", p.Stats()[0].Trouble.Words)
	})
}

func TestWhoDoesNotScaleSaysWhoDoesAndWhatTheBackendKnows(t *testing.T) {
	for _, c := range []struct {
		name string
		duty backend.Duty
		want string
	}{
		{"another", backend.Duty{Shared: true, Holder: "west"}, "; another orchestrator (west) starts its containers"},
		{"another in trouble", backend.Duty{Shared: true, Holder: "west", Trouble: "no\nmemory"}, "; another orchestrator (west) starts its containers, and there is trouble: no memory"},
		{"nobody", backend.Duty{Shared: true, Trouble: "no answer"}, "; no orchestrator is known to start its containers now, and there is trouble: no answer"},
		{"this one, which has not failed yet", backend.Duty{Shared: true, Held: true, Trouble: "no answer"}, "; no container can be started: no answer"},
		{"this one", backend.Duty{Shared: true, Held: true}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				f.startTakes = time.Minute
				f.duty = func() backend.Duty { return c.duty }
				p := open(t, f, pool.Config{Templates: []pool.Template{scaled(1, 1)}})
				pass(time.Second)
				_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", Wait: time.Second})
				require.EqualError(t, err, "no slot of pool t is free: place 1 of 1 in the queue after 1s"+c.want)
				assert.Equal(t, pool.Trouble{Words: strings.ReplaceAll(c.duty.Trouble, "\n", " ")}, p.Stats()[0].Trouble)
			})
		})
	}
}

func TestWhatFailedHereIsForgottenWhenAnotherScales(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.refuses(slots.Errorf(slots.KindInternal, "no such program"))
		who, all := seats(t, f, 2, pool.Config{Templates: []pool.Template{scaled(1, 1)}})
		require.NotZero(t, all[0].Stats()[0].Trouble)
		who[0].leads.Store(false)
		pass(2 * time.Second)
		assert.Zero(t, all[0].Stats()[0].Trouble)
		_, err := all[0].Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x"})
		require.ErrorContains(t, err, "no orchestrator is known to start its containers now")
		assert.NotContains(t, err.Error(), "no such program")

		f.mu.Lock()
		f.startTakes = 10 * time.Second
		f.mu.Unlock()
		who[0].leads.Store(true)
		pass(5 * time.Second)
		assert.Zero(t, all[0].Stats()[0].Trouble, "what was before is not how it is now")
		require.Equal(t, 1, all[0].Stats()[0].Starting)
		who[0].leads.Store(false)
		pass(10 * time.Second)
		assert.Zero(t, all[0].Stats()[0].Trouble, "nor what fails after another has begun to scale")
	})
}
