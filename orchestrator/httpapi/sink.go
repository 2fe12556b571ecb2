package httpapi

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
)

// mode is the form of an answer.
type mode int

const (
	plain mode = iota
	ndjson
	eventStream
)

// streamed reads from the request in which form its client wants the answer.
func streamed(r *http.Request) mode {
	for _, accept := range r.Header[echo.HeaderAccept] {
		for part := range strings.SplitSeq(accept, ",") {
			name, _, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case api.TypeNDJSON:
				return ndjson
			case api.TypeEventStream:
				return eventStream
			}
		}
	}
	return plain
}

// sink writes the events of one streamed answer. It is used by one goroutine.
type sink struct {
	s    *Server
	c    echo.Context
	mode mode
	b    bytes.Buffer
}

// newSink begins a streamed answer; its status is 200 from here on.
func (s *Server) newSink(c echo.Context, m mode) *sink {
	w := c.Response()
	contentType := api.TypeNDJSON
	if m == eventStream {
		contentType = api.TypeEventStream
	}
	streamHeader(w.Header(), contentType)
	s.extend(c, 0)
	w.WriteHeader(http.StatusOK)
	w.Flush()
	return &sink{s: s, c: c, mode: m}
}

// streamHeader is the header of an answer that comes in pieces.
func streamHeader(h http.Header, contentType string) {
	h.Set(echo.HeaderContentType, contentType)
	h.Set(echo.HeaderCacheControl, "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies keep answers back otherwise
}

// event sends one event. JSON holds no raw newline, so neither form can be
// broken from inside.
func (k *sink) event(e api.Event) error {
	text, err := e.MarshalJSON()
	if err != nil {
		return err
	}
	return k.write(e.Name, text)
}

// write sends the text of an event.
func (k *sink) write(name api.EventName, text []byte) error {
	k.b.Reset()
	switch {
	case k.mode == eventStream && name == api.EventPing:
		k.b.WriteString(": ping\n\n")
	case k.mode == eventStream:
		k.b.WriteString("event: " + string(name) + "\ndata: ")
		k.b.Write(text)
		k.b.WriteString("\n\n")
	default:
		k.b.Write(text)
		k.b.WriteByte('\n')
	}
	k.s.extend(k.c, k.b.Len())
	w := k.c.Response()
	if _, err := w.Write(k.b.Bytes()); err != nil {
		return err
	}
	w.Flush()
	return nil
}
