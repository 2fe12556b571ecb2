package slots

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/quick"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// kindOf is the error's kind, "" for nil.
func kindOf(err error) Kind {
	if err == nil {
		return ""
	}
	return AsError(err).Kind
}

func leased(t *testing.T) *Tenancy {
	t.Helper()
	slot := &Tenancy{SlotID: "slot_0"}
	_, err := slot.Acquire(noon, "t1", time.Minute, nil)
	require.NoError(t, err)
	return slot
}

func TestAcquireGivesAFreeSlotUnderANewToken(t *testing.T) {
	slot := &Tenancy{SlotID: "slot_3", LastToken: 41}
	labels := map[string]string{"run": "7"}
	lease, err := slot.Acquire(noon, "t1", time.Minute, labels)
	require.NoError(t, err)
	assert.Equal(t, Lease{
		SlotID: "slot_3", Token: 42, Trajectory: "t1", Labels: map[string]string{"run": "7"},
		AcquiredAt: noon, ExpiresAt: noon.Add(time.Minute), TTL: time.Minute,
	}, lease)
	labels["run"] = "8"
	assert.Equal(t, "7", slot.Lease.Labels["run"], "labels are copied")
}

func TestAcquireRefusesALeasedSlotToEverybody(t *testing.T) {
	slot := leased(t)
	for _, trajectory := range []string{"t1", "t2"} {
		for _, now := range []time.Time{noon, noon.Add(time.Hour)} {
			_, err := slot.Acquire(now, trajectory, time.Minute, nil)
			assert.Equal(t, KindConflict, kindOf(err))
			require.ErrorContains(t, err, "slot is leased")
		}
	}
	assert.EqualValues(t, 1, slot.LastToken, "a refusal gives no token")
}

func TestAcquireRefusesTermsThatAreNone(t *testing.T) {
	long := strings.Repeat("x", 257)
	many := map[string]string{}
	for i := range MaxLabels + 1 {
		many[strings.Repeat("k", i+1)] = ""
	}
	for name, c := range map[string]struct {
		trajectory string
		ttl        time.Duration
		labels     map[string]string
	}{
		"no trajectory":     {"", time.Minute, nil},
		"a long trajectory": {long, time.Minute, nil},
		"no time":           {"t", 0, nil},
		"negative time":     {"t", -1, nil},
		"too many labels":   {"t", time.Minute, many},
		"a long label":      {"t", time.Minute, map[string]string{long: ""}},
		"a long value":      {"t", time.Minute, map[string]string{"k": long}},
	} {
		t.Run(name, func(t *testing.T) {
			slot := Tenancy{SlotID: "slot_0"}
			_, err := slot.Acquire(noon, c.trajectory, c.ttl, c.labels)
			assert.Equal(t, KindBadRequest, kindOf(err))
			assert.Equal(t, Tenancy{SlotID: "slot_0"}, slot)
		})
	}
}

func TestExpectComparesTheLastToken(t *testing.T) {
	slot := leased(t)
	require.NoError(t, slot.Expect(1))
	assert.Equal(t, KindConflict, kindOf(slot.Expect(0)))
	assert.Equal(t, KindConflict, kindOf(slot.Expect(2)))
	require.NoError(t, slot.Release(1))
	assert.NoError(t, slot.Expect(1), "a release gives no token")
}

func TestRenewMovesTheEndOfTheLease(t *testing.T) {
	slot := leased(t)
	lease, err := slot.Renew(noon.Add(30*time.Second), 1, 2*time.Minute)
	require.NoError(t, err)
	assert.Equal(t, noon.Add(150*time.Second), lease.ExpiresAt)
	assert.Equal(t, 2*time.Minute, lease.TTL)
	assert.Equal(t, noon, lease.AcquiredAt)
	assert.EqualValues(t, 1, lease.Token)
	lease, err = slot.Renew(noon.Add(31*time.Second), 1, time.Second)
	require.NoError(t, err)
	assert.Equal(t, noon.Add(32*time.Second), lease.ExpiresAt, "a shorter time is a renewal too")
}

func TestACopyOfATenancyIsIndependent(t *testing.T) {
	slot := leased(t)
	tried := *slot
	_, err := tried.Renew(noon, 1, time.Hour)
	require.NoError(t, err)
	tried.Resume(noon.Add(time.Second))
	require.NoError(t, tried.Release(1))
	assert.Equal(t, leased(t), slot)
}

func TestRenewRefusesWhoDoesNotHoldTheSlot(t *testing.T) {
	slot := leased(t)
	_, err := slot.Renew(noon, 2, time.Minute)
	assert.Equal(t, KindFenced, kindOf(err))
	_, err = slot.Renew(noon, 1, 0)
	assert.Equal(t, KindBadRequest, kindOf(err))
	_, err = slot.Renew(noon.Add(time.Minute), 1, time.Minute)
	assert.Equal(t, KindLeaseExpired, kindOf(err), "the end itself is over")
	require.NoError(t, slot.Release(1))
	_, err = slot.Renew(noon, 1, time.Minute)
	assert.Equal(t, KindFenced, kindOf(err))
}

func TestReleaseIsIdempotentForTheLastTokenOnly(t *testing.T) {
	slot := leased(t)
	assert.Equal(t, KindFenced, kindOf(slot.Release(0)))
	assert.Equal(t, KindFenced, kindOf(slot.Release(2)))
	require.NoError(t, slot.Release(1))
	assert.Nil(t, slot.Lease)
	require.NoError(t, slot.Release(1))
	_, err := slot.Acquire(noon, "t2", time.Minute, nil)
	require.NoError(t, err)
	assert.Equal(t, KindFenced, kindOf(slot.Release(1)), "the next tenant's lease is not the old one's to end")
	assert.Equal(t, "t2", slot.Lease.Trajectory)
}

func TestReleaseOfASlotThatNobodyLeasedIsFenced(t *testing.T) {
	slot := Tenancy{SlotID: "slot_0"}
	assert.Equal(t, KindFenced, kindOf(slot.Release(0)))
	assert.Equal(t, KindFenced, kindOf(slot.Release(1)))
}

func TestCheckFences(t *testing.T) {
	late := noon.Add(time.Minute)
	for name, c := range map[string]struct {
		leased bool
		now    time.Time
		token  *uint64
		kind   Kind
	}{
		"free without a token":           {false, noon, nil, ""},
		"free with a token":              {false, noon, new(uint64(1)), KindFenced},
		"leased without a token":         {true, noon, nil, KindFenced},
		"leased with another token":      {true, noon, new(uint64(2)), KindFenced},
		"leased with token 0":            {true, noon, new(uint64(0)), KindFenced},
		"leased with its token":          {true, noon, new(uint64(1)), ""},
		"its token a moment before":      {true, late.Add(-1), new(uint64(1)), ""},
		"its token at the end":           {true, late, new(uint64(1)), KindLeaseExpired},
		"expired with another token":     {true, late, new(uint64(9)), KindFenced},
		"expired without a token":        {true, late, nil, KindFenced},
		"its token long after the end":   {true, late.Add(time.Hour), new(uint64(1)), KindLeaseExpired},
		"its token before the beginning": {true, noon.Add(-time.Hour), new(uint64(1)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			slot := leased(t)
			if !c.leased {
				require.NoError(t, slot.Release(1))
			}
			assert.Equal(t, c.kind, kindOf(slot.Check(c.now, c.token)))
		})
	}
}

func TestARefusalNeverNamesTheTokenThatHolds(t *testing.T) {
	slot := &Tenancy{SlotID: "slot_0", LastToken: 987653}
	_, err := slot.Acquire(noon, "t1", time.Minute, nil)
	require.NoError(t, err)
	for _, refusal := range []error{slot.Check(noon, nil), slot.Check(noon, new(uint64(5))), slot.Release(5)} {
		assert.NotContains(t, refusal.Error(), "987654")
		assert.Equal(t, ExecutedNever, AsError(refusal).Executed)
	}
}

func TestExpiredNeedsALeaseWhoseTimeIsOver(t *testing.T) {
	slot := leased(t)
	assert.False(t, slot.Expired(noon.Add(time.Minute-1)))
	assert.True(t, slot.Expired(noon.Add(time.Minute)))
	require.NoError(t, slot.Release(1))
	assert.False(t, slot.Expired(noon.Add(time.Hour)))
}

func TestS15ALeaseFollowsTheMonotonicClock(t *testing.T) {
	slot := &Tenancy{SlotID: "slot_0"}
	lease, err := slot.Acquire(time.Now(), "t1", time.Minute, nil)
	require.NoError(t, err)
	assert.Contains(t, lease.ExpiresAt.String(), "m=", "the reading of the monotonic clock is kept")
	lease, err = slot.Renew(time.Now(), lease.Token, time.Minute)
	require.NoError(t, err)
	assert.Contains(t, lease.ExpiresAt.String(), "m=")
	slot.Resume(time.Now())
	assert.Contains(t, slot.Lease.ExpiresAt.String(), "m=")
}

func TestS15ResumeNeverMakesALeaseLonger(t *testing.T) {
	for name, c := range map[string]struct{ now, expires time.Time }{
		"a restart at once":           {noon, noon.Add(time.Minute)},
		"a restart in between":        {noon.Add(20 * time.Second), noon.Add(time.Minute)},
		"a restart after the end":     {noon.Add(time.Hour), noon.Add(time.Hour)},
		"a clock that went back":      {noon.Add(-24 * time.Hour), noon.Add(-24*time.Hour + time.Minute)},
		"a clock that went far ahead": {noon.Add(24 * time.Hour), noon.Add(24 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			slot := leased(t)
			slot.Resume(c.now)
			assert.Equal(t, c.expires, slot.Lease.ExpiresAt)
			assert.EqualValues(t, 1, slot.LastToken)
		})
	}
	free := Tenancy{SlotID: "slot_0", LastToken: 7}
	free.Resume(noon)
	assert.Equal(t, Tenancy{SlotID: "slot_0", LastToken: 7}, free)
}

func TestTenancySurvivesItsJSON(t *testing.T) {
	slot := &Tenancy{SlotID: "slot_0", LastToken: 4}
	_, err := slot.Acquire(noon, "t1", 1500*time.Millisecond, map[string]string{"a": "b"})
	require.NoError(t, err)
	text, err := json.Marshal(slot)
	require.NoError(t, err)
	assert.JSONEq(t, `{"slot_id":"slot_0","last_token":5,"lease":{"slot_id":"slot_0","token":5,"trajectory":"t1",
		"labels":{"a":"b"},"acquired_at":"2026-03-01T12:00:00Z","expires_at":"2026-03-01T12:00:01.5Z","ttl_s":1.5}}`, string(text))
	var back Tenancy
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, *slot, back)
	require.NoError(t, slot.Release(5))
	text, err = json.Marshal(slot)
	require.NoError(t, err)
	assert.JSONEq(t, `{"slot_id":"slot_0","last_token":5}`, string(text))
	assert.Error(t, json.Unmarshal([]byte(`{"lease":{"token":-1}}`), &back))
}

// model is a slot's tenancy kept the obvious way.
type model struct {
	holder  string // "" for none
	token   uint64
	given   uint64
	expires time.Time
}

// TestStressNeverTwoHolders drives random operations of several trajectories,
// each with the last token that it got, and compares with the model.
func TestStressNeverTwoHolders(t *testing.T) {
	play := func(seed uint64) bool {
		random := rand.New(rand.NewPCG(seed, 0))
		slot, m := &Tenancy{SlotID: "slot_0"}, model{}
		tokens := map[string]uint64{}
		now := noon
		for range 300 {
			now = now.Add(time.Duration(random.IntN(20)) * time.Second)
			who := string(rune('a' + random.IntN(4)))
			before := slot.LastToken
			if !step(slot, &m, random, now, who, tokens) || slot.LastToken < before || slot.LastToken != m.given {
				return false
			}
			holders := 0
			for token := range maps.Values(tokens) {
				if slot.Check(now, &token) == nil {
					holders++
				}
			}
			if holders > 1 || holders == 1 && m.holder == "" {
				return false
			}
			if random.IntN(20) == 0 && !restart(t, slot, now) {
				return false
			}
		}
		return true
	}
	require.NoError(t, quick.Check(play, &quick.Config{MaxCount: 60}))
}

// step does one random operation on both and reports whether they agree.
func step(slot *Tenancy, m *model, random *rand.Rand, now time.Time, who string, tokens map[string]uint64) bool {
	mine, live := tokens[who], now.Before(m.expires)
	holds := m.holder != "" && m.token == mine
	switch random.IntN(4) {
	case 0:
		lease, err := slot.Acquire(now, who, time.Minute, nil)
		if m.holder != "" {
			return kindOf(err) == KindConflict
		}
		m.given++
		m.holder, m.token, m.expires = who, m.given, now.Add(time.Minute)
		tokens[who] = lease.Token
		return err == nil && lease.Token == m.given
	case 1:
		_, err := slot.Renew(now, mine, time.Minute)
		switch {
		case !holds:
			return kindOf(err) == KindFenced
		case !live:
			return kindOf(err) == KindLeaseExpired
		}
		m.expires = now.Add(time.Minute)
		return err == nil
	case 2:
		err := slot.Release(mine)
		if mine == 0 || mine != m.given {
			return kindOf(err) == KindFenced
		}
		m.holder = ""
		return err == nil
	default:
		err := slot.Check(now, &mine)
		switch {
		case !holds:
			return kindOf(err) == KindFenced
		case !live:
			return kindOf(err) == KindLeaseExpired && slot.Expired(now)
		}
		return err == nil
	}
}

// restart replaces the tenancy by what its JSON says.
func restart(t *testing.T, slot *Tenancy, now time.Time) bool {
	t.Helper()
	text, err := json.Marshal(slot)
	require.NoError(t, err)
	*slot = Tenancy{}
	require.NoError(t, json.Unmarshal(text, slot))
	before := slot.Expired(now)
	slot.Resume(now)
	return slot.Expired(now) == before
}

func TestALeaseEndsWhenItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slot := &Tenancy{SlotID: "slot_0"}
		lease, err := slot.Acquire(time.Now(), "t1", time.Minute, nil)
		require.NoError(t, err)
		time.Sleep(59 * time.Second)
		require.NoError(t, slot.Check(time.Now(), &lease.Token))
		time.Sleep(time.Second)
		assert.Equal(t, KindLeaseExpired, kindOf(slot.Check(time.Now(), &lease.Token)))
	})
}
