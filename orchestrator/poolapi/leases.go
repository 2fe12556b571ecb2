package poolapi

import (
	"encoding/json"
	"strconv"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// LeaseRequest is the body of POST /v1/leases. The answer is a Lease.
type LeaseRequest struct {
	Template   string            `json:"template,omitempty"` // "": the one of trajectories
	Trajectory string            `json:"trajectory"`
	Labels     map[string]string `json:"labels,omitempty"`  // a slot that the trajectory holds already keeps those it has
	TTLSeconds float64           `json:"ttl_s,omitempty"`   // at least 1; 0: the template's
	WaitS      float64           `json:"wait_s,omitempty"`  // in the queue; 0: not at all
	Further    bool              `json:"further,omitempty"` // one more slot, also if the trajectory has one
}

// Lease is a trajectory's right to a slot.
type Lease struct {
	ID         string            `json:"lease"` // names it for ever
	Template   string            `json:"template"`
	Trajectory string            `json:"trajectory"`
	Container  string            `json:"container"`
	SlotID     string            `json:"slot_id"`
	Labels     map[string]string `json:"labels"`
	Further    bool              `json:"further"`
	AcquiredAt time.Time         `json:"acquired_at"`
	ExpiresAt  time.Time         `json:"expires_at"`
	TTLSeconds float64           `json:"ttl_s"`
	Draining   bool              `json:"draining,omitempty"`      // the container is to be stopped, or unheard: end what runs, and release
	Unheard    bool              `json:"unheard,omitempty"`       // nobody hears of the container's machine: it is given up at drain_deadline, and if it is back before, only what else drains it stays
	Deadline   time.Time         `json:"drain_deadline,omitzero"` // when it is stopped all the same, or given up; absent: never, or it is not known
}

// HeaderDraining is a header of the answers to calls whose slot is in a
// container that is to be stopped, or unheard: by when it ends, as in RFC 3339,
// or DrainsLater.
const HeaderDraining = "Berth-Draining"

// HeaderUnheard is a header beside HeaderDraining, with the value "true", where
// nobody hears of the container's machine: see Lease.Unheard.
const HeaderUnheard = "Berth-Unheard"

// DrainsLater stands in HeaderDraining when no deadline is known.
const DrainsLater = "no-deadline"

// LeaseRenewal is the body of PUT /v1/leases/{lease}, which may be missing.
// The answer is the renewed Lease.
type LeaseRenewal struct {
	TTLSeconds float64 `json:"ttl_s,omitempty"` // at least 1; 0: the TTL that it has
}

// LeaseRelease is the body of DELETE /v1/leases/{lease}, which may be missing.
// The answer is a Released.
type LeaseRelease struct {
	Reset *bool `json:"reset,omitempty"` // absent means true
}

// Leases answers GET /v1/leases, in the order of containers and slots.
type Leases struct {
	Leases []Lease `json:"leases"`
}

// Released tells what came of one release.
type Released struct {
	Lease string         `json:"lease"`
	Reset *slots.Receipt `json:"reset,omitempty"` // absent when none was asked for, or none is known
	Error *api.Fault     `json:"error,omitempty"` // in ReleasedLeases only
}

// ReleasedLeases answers DELETE /v1/leases: of each lease what came of it.
type ReleasedLeases struct {
	Released []Released `json:"released"`
}

// Call is the body of POST /v1/leases/{lease}/execute and the element of a
// Batch. The answer is an api.Result, or its events.
type Call struct {
	Tool          string          `json:"tool"`
	Args          json.RawMessage `json:"args,omitempty"`         // an object; absent and null mean {}
	ExecutionID   string          `json:"execution_id,omitempty"` // unique among the calls of the lease; made when empty
	TimeoutS      api.Timeout     `json:"timeout_s,omitzero"`
	CancelStarted bool            `json:"cancel_started,omitempty"` // end it also if it runs when the client goes away
}

// HeaderKey is the header by which a client names a request that it may send
// again: all that bear the same name are one request, and have one answer.
const HeaderKey = "Idempotency-Key"

// NameByKey is the ExecutionID of a call without one in a request that bears a
// key, by the call's place in its batch; 0 for one alone.
func NameByKey(key string, place int) string { return "key-" + strconv.Itoa(place) + "-" + key }

// Batch is the body of POST /v1/leases/{lease}/batch. The answer is a Results,
// or a stream of results.
type Batch struct {
	Calls []Call `json:"calls"`
}

// Results answers a Batch, in the order of the calls.
type Results struct {
	Results []api.Result `json:"results"`
}

// Queue says how it stood in the queue when a wait for a slot ended.
type Queue struct {
	Place   int     `json:"place"` // 1 is next
	Length  int     `json:"length"`
	WaitedS float64 `json:"waited_s"`
}

// Exhausted is an api.ErrorAnswer of kind pool_exhausted, with the queue.
type Exhausted struct {
	Error ExhaustedFault `json:"error"`
}

// ExhaustedFault is an api.Fault with the queue.
type ExhaustedFault struct {
	api.Fault
	Queue Queue `json:"queue"`
}
