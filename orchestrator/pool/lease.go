package pool

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// Labels of a lease that are this package's own and never shown.
const (
	ownPrefix    = "berth."
	labelGrant   = ownPrefix + "grant"   // names the request that the lease was given to
	labelFurther = ownPrefix + "further" // the lease is one that a trajectory asked for beside its first
	labelKey     = ownPrefix + "key"     // Request.Key
	ownLabels    = 3
)

// Lease is a trajectory's right to a slot, and where that slot is.
type Lease struct {
	Template  string
	Container backend.Container
	Slot      slots.Lease
	Further   bool // asked for beside another one of the same trajectory
}

// Ref names the lease.
func (l Lease) Ref() Ref {
	return Ref{Container: l.Container.ID, SlotID: l.Slot.SlotID, Token: l.Slot.Token}
}

// Ref names one lease for ever: a container's ID, a slot and a token are never
// given twice together. It means the same to every orchestrator.
type Ref struct {
	Container string
	SlotID    string
	Token     uint64
}

// String is the text that ParseRef reads, like "default-x7:slot_3:17".
func (r Ref) String() string {
	return r.Container + ":" + r.SlotID + ":" + strconv.FormatUint(r.Token, 10)
}

// ParseRef reads the text of a Ref. Anything else is slots.KindBadRequest.
func ParseRef(text string) (Ref, error) {
	container, rest, _ := strings.Cut(text, ":")
	slotID, token, _ := strings.Cut(rest, ":")
	n, err := strconv.ParseUint(token, 10, 64)
	if container == "" || slotID == "" || err != nil || n == 0 || strings.HasPrefix(token, "0") {
		return Ref{}, slots.Errorf(slots.KindBadRequest, "%.80q names no lease: want CONTAINER:SLOT:TOKEN", text)
	}
	return Ref{Container: container, SlotID: slotID, Token: n}, nil
}

// Request asks for a slot.
type Request struct {
	Template   string
	Trajectory string
	Labels     map[string]string // free text, kept with the lease; one that is held already keeps those it has
	TTL        time.Duration     // MinTTL to what the container allows; 0: the template's
	Wait       time.Duration     // how long to wait in the queue; 0: not at all
	Further    bool              // one more slot, also if the trajectory has one
	Key        string            // names a further slot: who asks again with it gets that one; at most slots.MaxLabelBytes
}

// QueueError is the cause of a slots.KindPoolExhausted: how it stood when the
// wait ended.
type QueueError struct {
	Template string
	Place    int // of this caller in the queue; 1 is next
	Length   int // of the queue
	Waited   time.Duration
	Why      string // there are no more slots, in a sentence; "": nothing is known but that others have them
}

// Error says it in a sentence.
func (e *QueueError) Error() string {
	text := fmt.Sprintf("no slot of pool %s is free: place %d of %d in the queue after %v",
		e.Template, e.Place, e.Length, e.Waited.Round(time.Millisecond))
	if e.Why != "" {
		text += "; " + e.Why
	}
	return text
}

// shown is the lease as its holder may see it.
func shown(l slots.Lease) slots.Lease {
	l.Labels = maps.Clone(l.Labels)
	maps.DeleteFunc(l.Labels, func(name, _ string) bool { return strings.HasPrefix(name, ownPrefix) })
	if len(l.Labels) == 0 {
		l.Labels = nil
	}
	return l
}
