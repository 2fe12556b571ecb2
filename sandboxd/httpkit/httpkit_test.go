package httpkit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/httpkit"
	"berth/slots"
)

func TestStreamsAreAskedForByTheirTypes(t *testing.T) {
	for accept, want := range map[string]httpkit.Mode{
		"": httpkit.Plain, "*/*": httpkit.Plain, "application/json": httpkit.Plain,
		"application/x-ndjson": httpkit.NDJSON, "text/event-stream": httpkit.EventStream,
		"text/html, Application/X-NDJSON;q=0.9": httpkit.NDJSON, "application/json;q=0.5, application/x-ndjson; q=1": httpkit.NDJSON,
		"text/event-stream, application/x-ndjson": httpkit.EventStream,
	} {
		assert.Equal(t, want, httpkit.Streamed(&http.Request{Header: http.Header{"Accept": {accept}}}), accept)
	}
}

func TestAnErrorHasTheStatusOfItsKindUnlessItSaysAnother(t *testing.T) {
	gone := slots.Errorf(slots.KindNotFound, "gone")
	assert.Equal(t, http.StatusNotFound, httpkit.Status(fmt.Errorf("ask: %w", gone)))
	told := fmt.Errorf("ask: %w", &httpkit.StatusError{Status: http.StatusOK, Err: gone})
	assert.Equal(t, http.StatusOK, httpkit.Status(told))
	assert.Equal(t, slots.KindNotFound, slots.AsError(told).Kind)
	assert.Equal(t, http.StatusInternalServerError, httpkit.Status(errors.New("x")))
}

func TestABodyIsReadUpToItsBound(t *testing.T) {
	for _, c := range []struct {
		name, body string
		length     int64 // -1: not told
		expect     string
		kind       slots.Kind
		left       int // bytes that nobody read
	}{
		{name: "none"},
		{name: "as much as may be", body: "12345678", length: 8},
		{name: "as much, and no length", body: "12345678", length: -1},
		{name: "one too many", body: "123456789", length: 9, kind: slots.KindTooLarge},
		{name: "one too many, and no length", body: "123456789", length: -1, kind: slots.KindTooLarge},
		{name: "far too many", body: strings.Repeat("x", 100), length: 100, kind: slots.KindTooLarge, left: 100 - 2*8},
		{name: "too many, and asked first", body: strings.Repeat("x", 100), length: 100, expect: "100-continue", kind: slots.KindTooLarge, left: 100},
	} {
		text := strings.NewReader(c.body)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", text)
		if r.ContentLength = c.length; c.body == "" {
			r.Body = http.NoBody
		}
		if c.expect != "" {
			r.Header.Set("Expect", c.expect)
		}
		b, err := httpkit.ReadBody(r, r.Body, 8)
		if c.kind != "" {
			require.Error(t, err, c.name)
			assert.Equal(t, c.kind, slots.AsError(err).Kind, c.name)
			assert.Equal(t, c.left, text.Len(), c.name)
			continue
		}
		require.NoError(t, err, c.name)
		assert.Equal(t, c.body, b.String(), c.name)
		httpkit.PutBuffer(b)
	}
}

func TestARefusedBodyIsReadUnlessItsClientAsked(t *testing.T) {
	for _, c := range []struct {
		name, expect string
		read         int // before it is refused
		broken       bool
		left         int
	}{
		{name: "not asked"},
		{name: "not asked, and begun", read: 3},
		{name: "asked", expect: "100-continue", left: 9},
		{name: "asked, and told to send", expect: "100-continue", read: 3},
		{name: "broken off", read: 3, broken: true, left: 6},
	} {
		text := strings.NewReader("123456789")
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/", text)
		if c.expect != "" {
			r.Header.Set("Expect", c.expect)
		}
		body := &httpkit.PatientReader{Body: text}
		if c.broken {
			body.Body = io.MultiReader(io.LimitReader(text, int64(c.read)), iotest.ErrReader(os.ErrDeadlineExceeded), text)
		}
		_, _ = io.ReadFull(body, make([]byte, c.read))
		if c.broken {
			_, err := body.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		body.Refuse(r)
		assert.Equal(t, c.left, text.Len(), c.name)
		_, err := body.Read(make([]byte, 1))
		require.Error(t, err, c.name)
		require.NotErrorIs(t, err, io.EOF, "what was cut off must not look whole")
	}
}

// deadlines notes those that are set.
type deadlines struct{ set []time.Time }

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}

func TestAPatientReaderWaitsForTheNextBytesOnly(t *testing.T) {
	var conn deadlines
	r := &httpkit.PatientReader{Body: strings.NewReader("text"), Conn: &conn, Stall: time.Hour}
	p := make([]byte, 3)
	_, err := r.Read(p)
	require.NoError(t, err)
	require.Len(t, conn.set, 1)
	assert.Greater(t, time.Until(conn.set[0]), 30*time.Minute)
	_, err = r.Read(p)
	require.NoError(t, err)
	require.Len(t, conn.set, 1, "it is precise enough")
	_, err = r.Read(p)
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, conn.set, 2)
	assert.True(t, conn.set[1].IsZero(), "it ends with the body")

	slow := httpkit.BodyError(fmt.Errorf("read: %w", os.ErrDeadlineExceeded))
	assert.Equal(t, http.StatusRequestTimeout, httpkit.Status(slow))
	assert.Equal(t, http.StatusBadRequest, httpkit.Status(httpkit.BodyError(io.ErrUnexpectedEOF)))
}
