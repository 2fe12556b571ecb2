package calls

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"berth/orchestrator/pool"
)

func TestALeaseIsRenewedWhileItIsUsedAndThenForgotten(t *testing.T) {
	u := uses{byRef: map[pool.Ref]*use{}, doubts: map[string]time.Time{}}
	ref, granted := pool.Ref{Container: "c", SlotID: "slot_0", Token: 1}, time.Now()
	const every, idle = time.Second, 10 * time.Second
	at := func(d time.Duration) time.Time { return granted.Add(d) }
	due := func(d time.Duration) int { return len(u.due(at(d), idle)) }

	one := u.begin(ref, granted, every)
	assert.Same(t, one, u.begin(ref, granted.Add(-time.Hour), every), "the second call knows no better")
	assert.Zero(t, due(every/2), "it was granted just now")
	assert.Equal(t, 1, due(every))
	one.renewed = at(every)
	assert.Zero(t, due(every+every/2))
	assert.Equal(t, 1, due(2*every), "a call runs")
	assert.Equal(t, 1, due(2*every), "it was not renewed")
	u.end(one)
	u.end(one)
	one.renewed = at(2 * every)
	assert.Equal(t, 1, due(3*every), "it was used since")
	one.renewed = at(3 * every)
	assert.Zero(t, due(4*every), "it was not used since")
	assert.Empty(t, u.byRef)
}

func TestADoubtIsForgottenInTime(t *testing.T) {
	u := uses{byRef: map[pool.Ref]*use{}, doubts: map[string]time.Time{}}
	ref := pool.Ref{Container: "c", SlotID: "slot_0", Token: 1}
	u.begin(ref, time.Now(), time.Second)
	assert.False(t, u.doubted("a"))
	u.doubt("a", ref)
	assert.True(t, u.doubted("a"))
	assert.Empty(t, u.byRef)
	u.trust("a")
	assert.False(t, u.doubted("a"))
	u.doubt("a", ref)
	u.due(time.Now().Add(time.Minute), time.Hour)
	assert.True(t, u.doubted("a"))
	u.due(time.Now().Add(2*time.Hour), time.Hour)
	assert.False(t, u.doubted("a"), "who never comes back leaves nothing")
}

func TestExecutionsOfTwoLeasesNeverShareAName(t *testing.T) {
	ref := func(slot string, token uint64) pool.Ref { return pool.Ref{Container: "c", SlotID: slot, Token: token} }
	seen := map[string]bool{}
	for _, name := range []string{"a", "1:a", strings.Repeat("x", maxName), strings.Repeat("x", maxName+1), strings.Repeat("x", 10_000), strings.Repeat("é", 5000)} {
		for _, r := range []pool.Ref{ref("slot_1", 1), ref("slot_1", 11), ref("slot_11", 1)} {
			id := ExecutionID(r, name)
			assert.False(t, seen[id], id)
			assert.LessOrEqual(t, len(id), 256)
			seen[id] = true
		}
	}
	assert.Empty(t, ExecutionID(ref("slot_1", 1), ""), "one is made up")
}

func TestAShortLeaseHastensTheLook(t *testing.T) {
	u := uses{byRef: map[pool.Ref]*use{}, doubts: map[string]time.Time{}, hurry: make(chan struct{}, 1)}
	const most = time.Minute
	assert.Equal(t, most, u.look(most))
	u.begin(pool.Ref{SlotID: "slot_0", Token: 1}, time.Now(), most)
	assert.Empty(t, u.hurry, "it can wait")
	short := u.begin(pool.Ref{SlotID: "slot_1", Token: 1}, time.Now(), time.Second)
	assert.Len(t, u.hurry, 1)
	assert.Equal(t, time.Second, u.look(most))
	due := u.due(time.Now().Add(2*time.Second), time.Hour)
	assert.Len(t, due, 1, "the other one has time")
	u.end(short)
	short.renewed, short.called = time.Now(), false
	u.due(time.Now(), time.Hour)
	assert.Equal(t, most, u.look(most), "it is not used any more")
}
