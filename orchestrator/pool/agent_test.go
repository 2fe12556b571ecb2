package pool_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/pool"
	"berth/sandboxd/agenttest"
	"berth/sandboxd/client"
	"berth/slots"
)

func TestThePoolLeasesSlotsOfARealAgent(t *testing.T) {
	if testing.Short() {
		t.Skip("a real agent takes seconds to start")
	}
	level := slots.LevelNone
	if os.Geteuid() == 0 {
		levels := agenttest.Levels(t)
		level = levels[len(levels)-1]
	}
	a := agenttest.Start(t, agenttest.Options{Level: level, Slots: 2})
	f := newFleet()
	f.add("real", "t", 2)
	connect := func(backend.Container) (pool.Remote, error) {
		return client.New(client.Config{URL: a.URL, Token: a.Token})
	}
	for range 2 { // the second time it is rebuilt from the agent
		p, err := pool.New(f, connect, pool.Config{Templates: []pool.Template{fixed()}})
		require.NoError(t, err)
		l := acquire(t, p, "x")
		held, err := p.Lookup(t.Context(), "t", "x")
		require.NoError(t, err)
		require.Len(t, held, 1)
		assert.Equal(t, l.Ref(), held[0].Ref())
		assert.Equal(t, uint64(1), l.Slot.Token, "the same lease both times")
		assert.Empty(t, l.Slot.Labels)
		require.NoError(t, p.Close())
	}
	p, err := pool.New(f, connect, pool.Config{Templates: []pool.Template{fixed()}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	l, other := acquire(t, p, "x"), acquire(t, p, "y")
	_, err = p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "z"})
	assert.Equal(t, slots.KindPoolExhausted, kind(err))
	start := time.Now()
	receipt, err := p.Release(t.Context(), l.Ref(), true)
	require.NoError(t, err)
	assert.True(t, receipt.Clean)
	t.Logf("release with reset took %v", time.Since(start))
	again, err := p.Release(t.Context(), l.Ref(), true)
	require.NoError(t, err)
	assert.Equal(t, receipt, again)
	start = time.Now()
	acquire(t, p, "z")
	t.Logf("acquire took %v", time.Since(start))
	_, err = p.Renew(t.Context(), other.Ref(), time.Minute)
	require.NoError(t, err)
	forged := other.Ref()
	forged.Token = 99
	_, err = p.Renew(t.Context(), forged, time.Minute)
	assert.Equal(t, slots.KindFenced, kind(err))
}
