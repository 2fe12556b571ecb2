package httpkit

import (
	"errors"
	"net/http"
	"strings"

	"berth/sandboxd/api"
	"berth/slots"
)

// StatusError is an error whose status is not the one of its kind.
type StatusError struct {
	Status int
	Err    *slots.Error
}

// Error returns the message.
func (e *StatusError) Error() string { return e.Err.Message }

// Unwrap returns the error that has a kind.
func (e *StatusError) Unwrap() error { return e.Err }

// Status is the HTTP status for err.
func Status(err error) int {
	if e, ok := errors.AsType[*StatusError](err); ok {
		return e.Status
	}
	return slots.AsError(err).Kind.Status()
}

// Mode is the form of an answer.
type Mode int

// The forms.
const (
	Plain       Mode = iota // one piece
	NDJSON                  // api.TypeNDJSON
	EventStream             // api.TypeEventStream
)

// Streamed reads from the request in which form its client wants the answer.
func Streamed(r *http.Request) Mode {
	for _, accept := range r.Header["Accept"] {
		for part := range strings.SplitSeq(accept, ",") {
			name, _, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case api.TypeNDJSON:
				return NDJSON
			case api.TypeEventStream:
				return EventStream
			}
		}
	}
	return Plain
}
