package poolapi

import (
	"time"

	"berth/slots"
)

// Containers answers GET /v1/containers, by template and ID.
type Containers struct {
	Containers []Container `json:"containers"`
}

// Container is one container.
type Container struct {
	ID       string    `json:"id"`
	Template string    `json:"template"`
	State    string    `json:"state"`             // draining, unreachable, unheard, reading, cordoned, ready: the first that applies
	Failure  string    `json:"failure,omitempty"` // of the last look, if it failed
	URL      string    `json:"url"`
	Started  time.Time `json:"started_at"`
	Seen     time.Time `json:"seen_at"`
	Deadline time.Time `json:"deadline,omitzero"` // when what is left in a draining one is ended, or an unheard one is given up; absent: never, or it is not known
	Slots    []Slot    `json:"slots"`
}

// Slot is one slot of a Container.
type Slot struct {
	SlotID     string         `json:"slot_id"`
	State      slots.State    `json:"state"`
	Generation uint64         `json:"generation"`
	Reason     string         `json:"reason,omitempty"` // why it is quarantined
	Lease      *Lease         `json:"lease,omitempty"`
	Releasing  bool           `json:"releasing,omitempty"`
	Receipt    *slots.Receipt `json:"receipt,omitempty"` // of the last reset
}

// Cordon is the body of POST /v1/containers/{id}/cordon, which may be missing.
// The answer is the Container.
type Cordon struct {
	On *bool `json:"on,omitempty"` // absent means true
}

// Drain is the body of POST /v1/containers/{id}/drain and …/recycle, which may
// be missing. The answer is the Container.
type Drain struct {
	WithinS float64 `json:"within_s,omitempty"` // after which also what has leases is stopped; 0: never
}

// Pools answers GET /v1/pools.
type Pools struct {
	Pools []Pool `json:"pools"`
}

// Pool is all slots of one template, in numbers.
type Pool struct {
	Template   string              `json:"template"`
	Slots      int                 `json:"slots"`
	Available  int                 `json:"available"`
	Acquired   int                 `json:"acquired"`
	ByState    map[slots.State]int `json:"slots_by_state"` // "leased": available but for their lease
	Containers map[string]int      `json:"containers"`     // by state
	Starting   int                 `json:"starting"`
	Queue      int                 `json:"queue"`
	OldestS    float64             `json:"oldest_s"` // wait of the first in the queue
	Waited     Waited              `json:"waited"`
	Scales     bool                `json:"scales"`              // it is on this orchestrator to start and stop containers
	ScaledBy   string              `json:"scaled_by,omitempty"` // the name of the one of several whose part that is
	Trouble    *Trouble            `json:"trouble,omitempty"`   // why there are no more containers; absent: nothing is known to be wrong
}

// Trouble is why a Pool has no more containers.
type Trouble struct {
	FailedStarts int       `json:"failed_starts"`      // in a row; 0: it is not this orchestrator that starts them, or none has failed yet
	Failed       time.Time `json:"failed_at,omitzero"` // when the last of them did
	Next         time.Time `json:"next_at,omitzero"`   // no other is tried before
	Words        string    `json:"words"`              // of whatever starts containers
}

// Waited is how long acquires took.
type Waited struct {
	Count    uint64  `json:"count"`
	P50S     float64 `json:"p50_s"`
	P99S     float64 `json:"p99_s"`
	LongestS float64 `json:"longest_s"`
}
