package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"berth/slots"
)

// Call asks for one execution: the element of POST /batch and the body of
// POST /execute. Unknown fields are ignored.
type Call struct {
	SlotID      string          `json:"slot_id"`
	Tool        string          `json:"tool"`
	Args        json.RawMessage `json:"args,omitempty"`         // an object; absent and null mean {}
	ExecutionID string          `json:"execution_id,omitempty"` // made by the server when empty
	Timeout     Timeout         `json:"timeout,omitzero"`       // seconds
	Token       *uint64         `json:"token,omitempty"`        // the lease's token; required while the slot has a lease
}

// Timeout is a number of seconds as a client sent it: absent and null mean
// the default, everything but a finite number above 0 is kept as invalid
// until Duration is asked.
type Timeout struct{ raw json.RawMessage }

// Seconds makes a Timeout.
func Seconds(s float64) Timeout {
	raw, err := json.Marshal(s)
	if err != nil {
		raw = []byte(fmt.Sprintf("%q", fmt.Sprint(s)))
	}
	return Timeout{raw}
}

// UnmarshalJSON keeps the text.
func (t *Timeout) UnmarshalJSON(b []byte) error {
	t.raw = bytes.Clone(b)
	return nil
}

// MarshalJSON gives the text back.
func (t Timeout) MarshalJSON() ([]byte, error) {
	if t.raw == nil {
		return []byte("null"), nil
	}
	return t.raw, nil
}

// IsZero reports whether no timeout was sent.
func (t Timeout) IsZero() bool { return t.raw == nil }

// Duration resolves the timeout against the server's default and maximum.
// The error is a sentence for the caller.
func (t Timeout) Duration(byDefault, maximum time.Duration) (time.Duration, error) {
	if t.raw == nil || string(t.raw) == "null" {
		return min(byDefault, maximum), nil
	}
	var s float64
	if err := json.Unmarshal(t.raw, &s); err != nil {
		return 0, fmt.Errorf("timeout must be a number of seconds above 0, got %.40s", t.raw)
	}
	if s <= 0 || math.IsInf(s, 0) || math.IsNaN(s) {
		return 0, fmt.Errorf("timeout must be above 0 seconds, got %.40s", t.raw)
	}
	if s > maximum.Seconds() {
		return 0, fmt.Errorf("timeout of %.40s seconds is above the maximum of %g", t.raw, maximum.Seconds())
	}
	return max(time.Millisecond, time.Duration(s*float64(time.Second))), nil
}

// Result is the answer to a Call: the reference's five keys, and what one of
// our own tools adds.
type Result struct {
	Success     bool   `json:"success"`
	Output      string `json:"output"`
	Error       string `json:"error"`
	ExecutionID string `json:"execution_id"`
	// Function is the FunctionResult of the tool "function", as it was sent:
	// numbers in it may have any number of digits.
	Function json.RawMessage `json:"function,omitempty"`
	Metadata Metadata        `json:"metadata"`
	// Index is the call's place in its batch, in streamed batches only.
	Index *int `json:"index,omitempty"`

	peeked *peeked // nil: all of it was read
}

// WithIndex is the encoded result with its place in a streamed batch.
func WithIndex(encoded []byte, place int) []byte {
	out := make([]byte, 0, len(encoded)+len(`,"index":`)+20)
	out = append(out, encoded[:len(encoded)-1]...)
	out = append(out, `,"index":`...)
	out = strconv.AppendInt(out, int64(place), 10)
	return append(out, '}')
}

// Receipt says what a process that ran has cost and how it ended. Times are
// milliseconds.
type Receipt struct {
	Outcome     slots.Outcome `json:"outcome"`
	ExitCode    int           `json:"exit_code"` // -1 on timeout
	Signal      string        `json:"signal,omitempty"`
	DurationMS  float64       `json:"duration_ms"`
	SpawnMS     float64       `json:"spawn_ms"`
	CPUMS       float64       `json:"cpu_ms"`
	MaxRSSBytes int64         `json:"max_rss_bytes"`
	OOMKilled   bool          `json:"oom_killed"`
	StdoutBytes int64         `json:"stdout_bytes"`
	StderrBytes int64         `json:"stderr_bytes"`
	Truncated   bool          `json:"truncated"`
	Leftover    int           `json:"leftover_processes,omitempty"` // outlived the command and were killed
}

// Metadata describes a Result. Receipt is nil where no process ran; the
// error fields are empty where the call was carried out. Details holds what
// one tool adds; its keys stand beside the others on the wire and never
// replace them: Metadata's own keys are left out of Details, and those of
// Receipt where there is one.
type Metadata struct {
	*Receipt
	QueueMS    float64          `json:"queue_ms"` // waited for the slot
	Isolation  *slots.Isolation `json:"isolation,omitempty"`
	Generation uint64           `json:"generation"`
	ErrorKind  slots.Kind       `json:"error_kind,omitempty"`
	Retryable  *bool            `json:"retryable,omitempty"`
	Executed   slots.Executed   `json:"executed,omitempty"`
	Replayed   bool             `json:"replayed,omitempty"` // answered from the journal or joined
	Details    map[string]any   `json:"-"`
}

// UnmarshalJSON reads the fixed keys, and all others into Details. The key
// outcome tells whether there is a Receipt.
func (m *Metadata) UnmarshalJSON(b []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	read := Metadata{}
	if _, ran := all["outcome"]; ran {
		read.Receipt = &Receipt{}
	}
	for k, raw := range all {
		to := read.field(k)
		if to == nil {
			if read.Details == nil {
				read.Details = make(map[string]any, len(all))
			}
			var v any
			if err := json.Unmarshal(raw, &v); err != nil {
				return err
			}
			read.Details[k] = v
			continue
		}
		if err := json.Unmarshal(raw, to); err != nil {
			return err
		}
	}
	*m = read
	return nil
}

// field is where the key's value stands; nil where the key is a detail's.
// Package encoding/json finds fields by itself, but takes three passes to tell
// them from details.
func (m *Metadata) field(key string) any {
	switch key {
	case "queue_ms":
		return &m.QueueMS
	case "isolation":
		return &m.Isolation
	case "generation":
		return &m.Generation
	case "error_kind":
		return &m.ErrorKind
	case "retryable":
		return &m.Retryable
	case "executed":
		return &m.Executed
	case "replayed":
		return &m.Replayed
	}
	if m.Receipt == nil {
		return nil
	}
	return m.Receipt.field(key)
}

func (r *Receipt) field(key string) any {
	switch key {
	case "outcome":
		return &r.Outcome
	case "exit_code":
		return &r.ExitCode
	case "signal":
		return &r.Signal
	case "duration_ms":
		return &r.DurationMS
	case "spawn_ms":
		return &r.SpawnMS
	case "cpu_ms":
		return &r.CPUMS
	case "max_rss_bytes":
		return &r.MaxRSSBytes
	case "oom_killed":
		return &r.OOMKilled
	case "stdout_bytes":
		return &r.StdoutBytes
	case "stderr_bytes":
		return &r.StderrBytes
	case "truncated":
		return &r.Truncated
	case "leftover_processes":
		return &r.Leftover
	}
	return nil
}

// Refused makes the Result of a call that could not be carried out.
func Refused(executionID string, err error) Result {
	e := slots.AsError(err)
	retryable := e.Retryable
	return Result{
		Error: e.Message, ExecutionID: executionID,
		Metadata: Metadata{ErrorKind: e.Kind, Retryable: &retryable, Executed: e.Executed},
	}
}
