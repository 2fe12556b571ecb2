package httpkit

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"berth/slots"
)

// keptBuffer is the largest buffer that is kept for the next request.
const keptBuffer = 1 << 20

// buffers holds *bytes.Buffer for bodies and answers.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// GetBuffer returns an empty buffer, to be given back by PutBuffer.
func GetBuffer() *bytes.Buffer {
	b, ok := buffers.Get().(*bytes.Buffer)
	if !ok {
		return new(bytes.Buffer)
	}
	b.Reset()
	return b
}

// PutBuffer takes a buffer back. Nobody may use it, nor what it held, any
// more.
func PutBuffer(b *bytes.Buffer) {
	if b.Cap() <= keptBuffer {
		buffers.Put(b)
	}
}

// Deadline is a connection as far as waiting for its next bytes goes.
type Deadline interface {
	SetReadDeadline(at time.Time) error
}

// PatientReader reads a request's body and fails when nothing comes for Stall.
// Its deadline ends with the body, because then the server waits on the same
// connection for the client to go away. A body that is not read to its end
// keeps the deadline: the server reads on to find the next request.
type PatientReader struct {
	Body  io.Reader
	Conn  Deadline // nil: no deadline can be set
	Stall time.Duration
	Armed time.Time // when the deadline was set last; zero: it was not

	mu    sync.Mutex // guards what is above and below: whoever the body was handed to may still be reading when it is refused
	begun bool
	ended bool
	over  bool
}

// errOver ends the reading of a body that has been refused.
var errOver = errors.New("request has been refused")

// Read reads from the body.
func (r *PatientReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return 0, errOver
	}
	return r.read(p)
}

func (r *PatientReader) read(p []byte) (n int, err error) {
	r.begun = true
	defer func() { r.ended = err != nil }()
	if r.Conn == nil {
		return r.Body.Read(p)
	}
	// A connection that takes no deadline is closed, which the read finds, or a
	// test's recorder. To set one costs more than to read the clock; a tenth of
	// the stall is precise enough.
	if now := time.Now(); now.Sub(r.Armed) > r.Stall/10 {
		_ = r.Conn.SetReadDeadline(now.Add(r.Stall))
		r.Armed = now
	}
	n, err = r.Body.Read(p)
	if errors.Is(err, io.EOF) {
		_ = r.Conn.SetReadDeadline(time.Time{})
		r.Armed = time.Time{}
	}
	return n, err
}

// maxRefused is how much of a refused body is read on, in bytes.
const maxRefused = 64 << 20

// Refuse ends the body of a request that is answered without it: many clients
// send all of a body before they look for an answer, and a connection that is
// closed before that takes the answer with it. So the rest is read, up to 64
// MiB. A client that has asked whether to send, and was not told to, is
// answered at once. Nobody reads from the body after it.
func (r *PatientReader) Refuse(request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if !r.ended && (r.begun || request.Header.Get("Expect") == "") {
		_, _ = io.CopyN(io.Discard, readerFunc(r.read), maxRefused) // it is refused either way
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// ReadBody reads the whole body of r, by way of body, into a buffer, which the
// caller gives back by PutBuffer. A body of more than most bytes is
// slots.KindTooLarge; for other errors see BodyError.
func ReadBody(r *http.Request, body io.Reader, most int64) (*bytes.Buffer, error) {
	if r.ContentLength > most {
		discard(r, body, most)
		return nil, TooLarge(most)
	}
	b := GetBuffer()
	if r.Body == nil || r.Body == http.NoBody {
		return b, nil
	}
	if r.ContentLength > 0 {
		// What is promised is not yet there: no more than a usual body is
		// reserved before it came.
		b.Grow(int(min(r.ContentLength, keptBuffer/2)) + bytes.MinRead)
	}
	_, err := b.ReadFrom(io.LimitReader(body, most+1))
	switch {
	case err != nil:
		PutBuffer(b)
		return nil, BodyError(err)
	case int64(b.Len()) > most:
		PutBuffer(b)
		discard(r, body, most)
		return nil, TooLarge(most)
	}
	return b, nil
}

// discard reads on in a body that is refused for its size: many clients send
// all of it before they look for an answer, and a connection that is closed
// before that takes the answer with it. It gives up after twice as much as a
// body may have; a client that asked first is answered at once.
func discard(r *http.Request, body io.Reader, most int64) {
	if r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, body, 2*most) // it is refused either way
	}
}

// TooLarge refuses a body of more than most bytes.
func TooLarge(most int64) error {
	return slots.Errorf(slots.KindTooLarge, "request body is larger than %d bytes", most)
}

// BodyError names why a body could not be read: it came too slowly, which is
// status 408, or was broken off. Both are slots.KindBadRequest.
func BodyError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &StatusError{Status: http.StatusRequestTimeout, Err: slots.Errorf(slots.KindBadRequest, "request body came too slowly")}
	}
	return slots.Errorf(slots.KindBadRequest, "read request body: %w", err)
}
