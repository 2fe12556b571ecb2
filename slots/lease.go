package slots

import (
	"encoding/json"
	"maps"
	"math"
	"time"
)

// What a lease may carry, so that a slot's stored tenancy stays small.
const (
	MaxTrajectoryBytes = 256
	MaxLabels          = 32
	MaxLabelBytes      = 256 // of a label's name and of its value, each
)

// Lease is a trajectory's time-limited right to a slot.
type Lease struct {
	SlotID     string
	Token      uint64 // per slot, only grows; every call on the slot carries it
	Trajectory string
	Labels     map[string]string // free text of the holder; read only
	AcquiredAt time.Time
	ExpiresAt  time.Time
	TTL        time.Duration // what the last acquire or renew asked for
}

// wireLease is a Lease as it travels: times in RFC 3339, the TTL in seconds.
type wireLease struct {
	SlotID     string            `json:"slot_id"`
	Token      uint64            `json:"token"`
	Trajectory string            `json:"trajectory"`
	Labels     map[string]string `json:"labels,omitempty"`
	AcquiredAt time.Time         `json:"acquired_at"`
	ExpiresAt  time.Time         `json:"expires_at"`
	TTLSeconds float64           `json:"ttl_s"`
}

// MarshalJSON encodes the lease in snake case, with ttl_s in seconds.
func (l Lease) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireLease{
		SlotID: l.SlotID, Token: l.Token, Trajectory: l.Trajectory, Labels: l.Labels,
		AcquiredAt: l.AcquiredAt, ExpiresAt: l.ExpiresAt, TTLSeconds: l.TTL.Seconds(),
	})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *Lease) UnmarshalJSON(b []byte) error {
	var w wireLease
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*l = Lease{
		SlotID: w.SlotID, Token: w.Token, Trajectory: w.Trajectory, Labels: w.Labels,
		AcquiredAt: w.AcquiredAt, ExpiresAt: w.ExpiresAt,
		TTL: time.Duration(math.Round(w.TTLSeconds * float64(time.Second))),
	}
	return nil
}

// Tenancy is who may use one slot: the last token ever given and the lease
// that holds now. It is a plain value with rules: a copy is independent, as
// no method changes what Lease points to, and whoever shares one between
// goroutines guards it. The zero value with a SlotID is a slot that nobody
// ever leased.
//
// The times that callers pass in should come from time.Now: they keep the
// monotonic clock, so that a jump of the wall clock ends no lease.
type Tenancy struct {
	SlotID    string `json:"slot_id"`
	LastToken uint64 `json:"last_token"` // 0: none was ever given
	Lease     *Lease `json:"lease,omitempty"`
}

// Expect is the compare of compare-and-set: it refuses with KindConflict
// unless last is the token that was given last. Call it right before Acquire.
func (t *Tenancy) Expect(last uint64) error {
	if t.LastToken != last {
		return Errorf(KindConflict, "slot %s has given token %d since: expected %d", t.SlotID, t.LastToken, last)
	}
	return nil
}

// Acquire gives the free slot to the trajectory, under a token that was never
// given before. A slot that is leased is refused with KindConflict, also to
// the trajectory that holds it and also after its expiry: what the tenant
// left must be reset and the lease released first.
func (t *Tenancy) Acquire(now time.Time, trajectory string, ttl time.Duration, labels map[string]string) (Lease, error) {
	if err := checkTerms(trajectory, ttl, labels); err != nil {
		return Lease{}, err
	}
	if t.Lease != nil {
		return Lease{}, Errorf(KindConflict, "slot is leased: %s", t.SlotID)
	}
	t.LastToken++
	t.Lease = &Lease{
		SlotID: t.SlotID, Token: t.LastToken, Trajectory: trajectory, Labels: maps.Clone(labels),
		AcquiredAt: now, ExpiresAt: now.Add(ttl), TTL: ttl,
	}
	return *t.Lease, nil
}

func checkTerms(trajectory string, ttl time.Duration, labels map[string]string) error {
	if trajectory == "" || len(trajectory) > MaxTrajectoryBytes {
		return Errorf(KindBadRequest, "trajectory must have 1 to %d bytes, got %d", MaxTrajectoryBytes, len(trajectory))
	}
	if len(labels) > MaxLabels {
		return Errorf(KindBadRequest, "a lease has at most %d labels, got %d", MaxLabels, len(labels))
	}
	for name, value := range labels {
		if len(name) > MaxLabelBytes || len(value) > MaxLabelBytes {
			return Errorf(KindBadRequest, "a label and its value have at most %d bytes each", MaxLabelBytes)
		}
	}
	return checkTTL(ttl)
}

func checkTTL(ttl time.Duration) error {
	if ttl <= 0 {
		return Errorf(KindBadRequest, "ttl must be above 0 seconds, got %g", ttl.Seconds())
	}
	return nil
}

// Renew makes the lease last ttl from now. A token that is not the current
// lease's is refused with KindFenced, a lease that has expired with
// KindLeaseExpired: its slot may be gone at any moment.
func (t *Tenancy) Renew(now time.Time, token uint64, ttl time.Duration) (Lease, error) {
	if err := checkTTL(ttl); err != nil {
		return Lease{}, err
	}
	if err := t.Check(now, &token); err != nil {
		return Lease{}, err
	}
	renewed := *t.Lease
	renewed.ExpiresAt, renewed.TTL = now.Add(ttl), ttl
	t.Lease = &renewed
	return renewed, nil
}

// Release ends the lease of the token. Once more with the token that was
// given last does nothing; any other token is refused with KindFenced.
func (t *Tenancy) Release(token uint64) error {
	if token == 0 || token != t.LastToken {
		return t.fenced(token)
	}
	t.Lease = nil
	return nil
}

// Check says whether a call with the token, nil for none, may use the slot
// now. A leased slot serves its lease's token alone, a free slot serves calls
// without one; everything else is KindFenced, and an expired lease is
// KindLeaseExpired.
func (t *Tenancy) Check(now time.Time, token *uint64) error {
	switch {
	case t.Lease == nil && token == nil:
		return nil
	case token == nil:
		return Errorf(KindFenced, "slot %s is leased: the call carries no token", t.SlotID)
	case t.Lease == nil || t.Lease.Token != *token:
		return t.fenced(*token)
	case t.Expired(now):
		return Errorf(KindLeaseExpired, "lease %d of slot %s has expired", *token, t.SlotID)
	}
	return nil
}

// fenced names the refused token only: the current one is its tenant's secret.
func (t *Tenancy) fenced(token uint64) error {
	return Errorf(KindFenced, "token %d does not hold slot %s", token, t.SlotID)
}

// Expired reports whether there is a lease whose time is over.
func (t *Tenancy) Expired(now time.Time) bool {
	return t.Lease != nil && !now.Before(t.Lease.ExpiresAt)
}

// Resume makes a tenancy that was read from disk follow the running clock. A
// lease never gets longer than its TTL by it, whatever the wall clock did
// while nobody watched.
func (t *Tenancy) Resume(now time.Time) {
	if t.Lease == nil {
		return
	}
	resumed := *t.Lease
	resumed.ExpiresAt = now.Add(min(max(0, resumed.ExpiresAt.Sub(now)), resumed.TTL))
	t.Lease = &resumed
}
