package api

import (
	"time"

	"berth/slots"
)

// HealthOK is the Status of a container that takes work. Clients of the
// reference treat every other word as unhealthy.
const HealthOK = "ok"

// Health is the answer of GET /health. The counts are of slots, but Queued,
// which counts calls that wait in all slots together.
type Health struct {
	Status      string          `json:"status"` // "ok", "starting", "draining", or "quarantined" when no slot is left
	Slots       int             `json:"slots"`
	Available   int             `json:"available"` // idle and usable, leased or not
	Executing   int             `json:"executing"`
	Quarantined int             `json:"quarantined"`
	Leased      int             `json:"leased"`
	Queued      int             `json:"queued"`
	DataDir     string          `json:"data_dir"`
	Isolation   slots.Isolation `json:"isolation"`
	Version     string          `json:"version"`
	UptimeS     float64         `json:"uptime_s"`

	DrainDeadline time.Time `json:"drain_deadline,omitzero"` // of one that drains: when what is left in it is ended
}

// LabelClosing is the label of a lease that nobody uses: it keeps the slot from
// everybody else. A drain does not wait for it.
const LabelClosing = "berth.closing"

// Slots is the answer of GET /slots, in the order of the slots' numbers.
type Slots struct {
	Slots []Slot `json:"slots"`
}

// Slot is one slot as GET /slots shows it.
type Slot struct {
	SlotID             string       `json:"slot_id"`
	State              slots.State  `json:"state"`
	WorkspaceDir       string       `json:"workspace_dir"`        // as the slot itself sees it
	CurrentExecutionID *string      `json:"current_execution_id"` // null when nothing runs
	Generation         uint64       `json:"generation"`
	Queued             int          `json:"queued"`
	Reason             string       `json:"reason,omitempty"` // why the slot is quarantined
	Lease              *slots.Lease `json:"lease,omitempty"`
}

// LeaseRequest is the body of POST /v1/slots/{slot}/lease and of POST
// /v1/leases, which takes any free slot. The answer is a slots.Lease.
type LeaseRequest struct {
	Trajectory string            `json:"trajectory"`
	TTLSeconds float64           `json:"ttl_s,omitempty"` // 0 or absent: the server's default
	Labels     map[string]string `json:"labels,omitempty"`
	// ExpectedToken is the last token that the caller knows of the slot. When
	// it is sent, the lease is granted only if no other was granted since. It
	// has no meaning on POST /v1/leases.
	ExpectedToken *uint64 `json:"expected_token,omitempty"`
}

// LeaseRenewal is the body of PUT /v1/slots/{slot}/lease. The answer is the
// renewed slots.Lease.
type LeaseRenewal struct {
	Token      uint64  `json:"token"`
	TTLSeconds float64 `json:"ttl_s,omitempty"` // 0 or absent: the TTL that the lease has
}

// LeaseRelease is the body of DELETE /v1/slots/{slot}/lease. The answer is a
// ReleaseAnswer.
type LeaseRelease struct {
	Token uint64 `json:"token"`
	Reset *bool  `json:"reset,omitempty"` // absent means true
}

// ReleaseAnswer is the answer of DELETE /v1/slots/{slot}/lease.
type ReleaseAnswer struct {
	SlotID string         `json:"slot_id"`
	Reset  *slots.Receipt `json:"reset,omitempty"` // absent when the caller asked for none
}

// Leases is the answer of GET /v1/leases, in the order of the slots' numbers.
type Leases struct {
	Leases []slots.Lease `json:"leases"`
}

// ResetRequest is the body of POST /reset.
type ResetRequest struct {
	SlotID string  `json:"slot_id"`
	Token  *uint64 `json:"token,omitempty"` // required while the slot has a lease
}

// ResetAnswer is the answer of POST /reset: the reference's five keys, with
// the receipt as metadata.
type ResetAnswer struct {
	Success     bool          `json:"success"`
	Output      string        `json:"output"`
	Error       string        `json:"error"`
	ExecutionID string        `json:"execution_id"` // always empty
	Metadata    ResetMetadata `json:"metadata"`
}

// ResetMetadata is the receipt of a reset and, when it failed, the reason.
type ResetMetadata struct {
	slots.Receipt
	ErrorKind slots.Kind     `json:"error_kind,omitempty"`
	Retryable *bool          `json:"retryable,omitempty"`
	Executed  slots.Executed `json:"executed,omitempty"`
}

// NewResetAnswer makes the answer of a reset that ended with the receipt and
// the error, which is nil when the slot is clean.
func NewResetAnswer(slotID string, receipt slots.Receipt, err error) ResetAnswer {
	if receipt.Checks == nil {
		receipt.Checks = []slots.Check{}
	}
	a := ResetAnswer{Metadata: ResetMetadata{Receipt: receipt}}
	if err == nil {
		a.Success = true
		a.Output = "Reset workspace for " + slotID
		return a
	}
	e := slots.AsError(err)
	retryable := e.Retryable
	a.Error = e.Message
	a.Metadata.ErrorKind, a.Metadata.Retryable, a.Metadata.Executed = e.Kind, &retryable, e.Executed
	return a
}

// ErrorAnswer is the body of every failed request on /v1. The status is that
// of the error's kind.
type ErrorAnswer struct {
	Error Fault `json:"error"`
}

// Fault is a slots.Error on the wire.
type Fault struct {
	Kind      slots.Kind     `json:"kind"`
	Message   string         `json:"message"`
	Retryable bool           `json:"retryable"`
	Executed  slots.Executed `json:"executed"`
}

// NewErrorAnswer puts err, which must not be nil, on the wire.
func NewErrorAnswer(err error) ErrorAnswer {
	e := slots.AsError(err)
	return ErrorAnswer{Fault{Kind: e.Kind, Message: e.Message, Retryable: e.Retryable, Executed: e.Executed}}
}

// Err is the error that the answer carries.
func (a ErrorAnswer) Err() *slots.Error {
	return &slots.Error{Kind: a.Error.Kind, Message: a.Error.Message, Retryable: a.Error.Retryable, Executed: a.Error.Executed}
}
