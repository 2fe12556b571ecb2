package slots

import (
	"errors"
	"fmt"
)

// Kind says why a call could not be carried out. It travels as
// metadata.error_kind, so its values are part of the wire protocol.
type Kind string

// The kinds of failure. Infrastructure faults are typed apart from what a
// command did, because a fault graded as the command's failure poisons
// training.
const (
	KindSlotLost             Kind = "slot_lost"
	KindContainerUnreachable Kind = "container_unreachable"
	KindLeaseExpired         Kind = "lease_expired"
	KindFenced               Kind = "fenced"
	KindQueueTimeout         Kind = "queue_timeout"
	KindPoolExhausted        Kind = "pool_exhausted"
	KindResetFailed          Kind = "reset_failed"
	KindInterrupted          Kind = "interrupted"
	KindBadRequest           Kind = "bad_request"
	KindUnauthorized         Kind = "unauthorized"
	KindInternal             Kind = "internal"
	KindNotFound             Kind = "not_found"
	KindConflict             Kind = "conflict"
	KindTooLarge             Kind = "too_large"
	KindDenied               Kind = "denied"
	KindDraining             Kind = "draining"
	KindUnavailable          Kind = "isolation_unavailable"
	KindSlotExhausted        Kind = "slot_exhausted" // what runs in the slot has used up its limit of processes or memory
)

// Executed says whether a call that failed may have had an effect.
type Executed string

// The three answers a client needs before it retries.
const (
	ExecutedNever Executed = "never"
	ExecutedMaybe Executed = "maybe"
	ExecutedYes   Executed = "yes"
)

// rule is what holds for every error of a kind unless the error says otherwise.
type rule struct {
	status    int
	retryable bool
	executed  Executed
}

var rules = map[Kind]rule{
	KindSlotLost:             {503, false, ExecutedMaybe},
	KindContainerUnreachable: {503, true, ExecutedMaybe},
	KindLeaseExpired:         {409, false, ExecutedNever},
	KindFenced:               {409, false, ExecutedNever},
	KindQueueTimeout:         {503, true, ExecutedNever},
	KindPoolExhausted:        {429, true, ExecutedNever},
	KindResetFailed:          {503, false, ExecutedNever},
	KindInterrupted:          {503, false, ExecutedMaybe},
	KindBadRequest:           {400, false, ExecutedNever},
	KindUnauthorized:         {401, false, ExecutedNever},
	KindInternal:             {500, false, ExecutedMaybe},
	KindNotFound:             {404, false, ExecutedNever},
	KindConflict:             {409, false, ExecutedNever},
	KindTooLarge:             {413, false, ExecutedNever},
	KindDenied:               {403, false, ExecutedNever},
	KindDraining:             {503, true, ExecutedNever},
	KindUnavailable:          {503, false, ExecutedNever},
	KindSlotExhausted:        {503, true, ExecutedNever},
}

// Kinds lists every kind, for tables and tests.
func Kinds() []Kind {
	kinds := make([]Kind, 0, len(rules))
	for k := range rules {
		kinds = append(kinds, k)
	}
	return kinds
}

// Status is the HTTP status that a server answers with for the kind.
// Unknown kinds are 500.
func (k Kind) Status() int {
	if r, ok := rules[k]; ok {
		return r.status
	}
	return 500
}

// Error is a call that could not be carried out.
type Error struct {
	Kind      Kind
	Message   string   // one lower-case sentence for people; part of the wire text
	Retryable bool     // the same call may succeed later, unchanged
	Executed  Executed // whether the command may have run
	Err       error    // the cause, or nil
}

// Errorf makes an Error of the kind with that kind's usual Retryable and
// Executed. A %w verb keeps the cause.
func Errorf(kind Kind, format string, args ...any) *Error {
	r := rules[kind]
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), Retryable: r.retryable, Executed: r.executed, Err: errors.Unwrap(err)}
}

// WithExecuted returns a copy that says what is known about the command.
func (e *Error) WithExecuted(x Executed) *Error {
	c := *e
	c.Executed = x
	return &c
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AsError returns err as an *Error; what is none becomes KindInternal.
// nil gives nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Errorf(KindInternal, "%w", err)
}
