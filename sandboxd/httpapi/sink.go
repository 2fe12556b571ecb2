package httpapi

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
)

// sinkRoom is how much a sink collects before it sends without being told.
const sinkRoom = 64 << 10

// sink writes the events of one streamed answer. It is used by one goroutine.
// After a failed write it does nothing more.
type sink struct {
	w    *echo.Response
	mode httpkit.Mode
	at   offsets // what the client has had of each stream after the last event
	b    *bytes.Buffer
	err  error
}

// newSink begins a streamed answer; its status is 200 from here on.
func (*Server) newSink(c echo.Context, m httpkit.Mode) *sink {
	w := c.Response()
	h := w.Header()
	h.Set(echo.HeaderContentType, api.TypeNDJSON)
	if m == httpkit.EventStream {
		h.Set(echo.HeaderContentType, api.TypeEventStream)
	}
	h[echo.HeaderCacheControl] = noStore
	h.Set("X-Accel-Buffering", "no") // proxies keep answers back otherwise
	w.WriteHeader(http.StatusOK)
	return &sink{w: w, mode: m, b: new(bytes.Buffer)}
}

// event adds one event of an execution.
func (s *sink) event(e api.Event) {
	if e.Chunk != nil {
		s.at.advance(e.Chunk.Stream, e.Chunk.Offset+int64(len(e.Chunk.Bytes())))
	}
	if e.Gap != nil {
		s.at.advance(e.Gap.Stream, e.Gap.To)
	}
	if s.mode == httpkit.EventStream && e.Name == api.EventPing {
		s.b.WriteString(": ping\n\n")
		return
	}
	text, err := e.MarshalJSON()
	if err != nil {
		s.err = err
		return
	}
	s.add(string(e.Name), s.at.String(), text)
}

// batchResult adds one result of a batch.
func (s *sink) batchResult(place int, answer []byte) {
	s.add(string(api.EventResult), strconv.Itoa(place), api.WithIndex(answer, place))
}

// result adds the event that ends an execution, from the result's JSON.
func (s *sink) result(answer []byte) {
	s.add(string(api.EventResult), s.at.String(), api.AppendEvent(nil, api.EventResult, answer))
}

// add adds one JSON text in the form of the sink. JSON holds no raw newline,
// so neither form can be broken from inside.
func (s *sink) add(name, id string, text []byte) {
	if s.mode == httpkit.EventStream {
		s.b.WriteString("event: ")
		s.b.WriteString(name)
		s.b.WriteString("\nid: ")
		s.b.WriteString(id)
		s.b.WriteString("\ndata: ")
		s.b.Write(text)
		s.b.WriteString("\n\n")
	} else {
		s.b.Write(text)
		s.b.WriteByte('\n')
	}
	if s.b.Len() >= sinkRoom {
		_ = s.flush() // kept in err
	}
}

// flush sends what was added. The error is the first of any write.
func (s *sink) flush() error {
	if s.err != nil || s.b.Len() == 0 {
		return s.err
	}
	if _, s.err = s.w.Write(s.b.Bytes()); s.err == nil {
		s.w.Flush()
	}
	s.b.Reset()
	return s.err
}

// offsets is how much of each output stream was sent, in bytes.
type offsets struct{ stdout, stderr int64 }

func (o *offsets) advance(stream string, to int64) {
	if stream == streamStderr {
		o.stderr = to
		return
	}
	o.stdout = to
}

// String is the form that travels as a server-sent event's id.
func (o offsets) String() string {
	return strconv.FormatInt(o.stdout, 10) + "." + strconv.FormatInt(o.stderr, 10)
}
