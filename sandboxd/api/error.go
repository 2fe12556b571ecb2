package api

import "berth/slots"

// ArtifactFailure is the body of every refused request under /artifacts, and
// of a /batch that is no batch. Clients of the reference read Success and
// Error.
type ArtifactFailure struct {
	Success   bool           `json:"success"` // always false
	Error     string         `json:"error"`
	Bytes     int64          `json:"bytes,omitempty"` // how large a refused archive would at least have been
	ErrorKind slots.Kind     `json:"error_kind"`
	Retryable bool           `json:"retryable"`
	Executed  slots.Executed `json:"executed"`
}

// NewArtifactFailure makes the body for err, which must not be nil; what is
// no *slots.Error is internal.
func NewArtifactFailure(err error) ArtifactFailure {
	e := slots.AsError(err)
	return ArtifactFailure{Error: e.Message, ErrorKind: e.Kind, Retryable: e.Retryable, Executed: e.Executed}
}

// Err is the error that the failure carries.
func (f ArtifactFailure) Err() *slots.Error {
	return &slots.Error{Kind: f.ErrorKind, Message: f.Error, Retryable: f.Retryable, Executed: f.Executed}
}

// Err is the reason why the call could not be carried out; nil when it was
// carried out, whatever its command did.
func (r Result) Err() error {
	m := r.Metadata
	if m.ErrorKind == "" {
		return nil
	}
	return &slots.Error{
		Kind: m.ErrorKind, Message: r.Error, Executed: m.Executed,
		Retryable: m.Retryable != nil && *m.Retryable,
	}
}

// Err is the reason why the slot was not made pristine; nil when it was.
func (a ResetAnswer) Err() error {
	m := a.Metadata
	if m.ErrorKind == "" {
		return nil
	}
	return &slots.Error{
		Kind: m.ErrorKind, Message: a.Error, Executed: m.Executed,
		Retryable: m.Retryable != nil && *m.Retryable,
	}
}
