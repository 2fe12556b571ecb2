package httpapi

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/sandboxd/httpkit"
)

// streamEvent is an api.Event as it travels: the fields of its kind are there.
type streamEvent struct {
	Event    api.EventName `json:"event"`
	ExecID   string        `json:"execution_id,omitempty"` // of start and result
	Stream   string        `json:"stream,omitempty"`       // of chunk and gap
	Offset   *int64        `json:"offset,omitempty"`       // of chunk
	Text     string        `json:"data,omitempty"`         // of chunk, or data_base64
	Bytes    string        `json:"data_base64,omitempty"`
	From     *int64        `json:"from,omitempty"` // of gap
	To       *int64        `json:"to,omitempty"`
	Success  *bool         `json:"success,omitempty"` // of result
	Output   *string       `json:"output,omitempty"`
	Error    *string       `json:"error,omitempty"`
	Metadata *api.Metadata `json:"metadata,omitempty"`
	Index    *int          `json:"index,omitempty"` // of a result in a batch
}

// sink writes the events of one streamed answer. It is used by one goroutine.
type sink struct {
	s    *Server
	c    echo.Context
	mode httpkit.Mode
	at   client.Offsets // up to which the client has the output, by then
	b    bytes.Buffer
}

// newSink begins a streamed answer; its status is 200 from here on.
func (s *Server) newSink(c echo.Context, m httpkit.Mode) *sink {
	w := c.Response()
	contentType := api.TypeNDJSON
	if m == httpkit.EventStream {
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

// advance notes where the client can go on after the event.
func (k *sink) advance(e api.Event) {
	var stream string
	var to int64
	switch {
	case e.Chunk != nil:
		stream, to = e.Chunk.Stream, e.Chunk.Offset+int64(len(e.Chunk.Bytes()))
	case e.Gap != nil:
		stream, to = e.Gap.Stream, e.Gap.To
	default:
		return
	}
	if stream == "stderr" {
		k.at.Stderr = to
		return
	}
	k.at.Stdout = to
}

// event sends one event. JSON holds no raw newline, so neither form can be
// broken from inside.
func (k *sink) event(e api.Event) error {
	text, err := e.MarshalJSON()
	if err != nil {
		return err
	}
	k.advance(e)
	return k.write(e.Name, text)
}

// write sends the text of an event.
func (k *sink) write(name api.EventName, text []byte) error {
	k.b.Reset()
	switch {
	case k.mode == httpkit.EventStream && name == api.EventPing:
		k.b.WriteString(": ping\n\n")
	case k.mode == httpkit.EventStream:
		fmt.Fprintf(&k.b, "event: %s\n", name)
		if name == api.EventChunk || name == api.EventGap {
			fmt.Fprintf(&k.b, "id: %d.%d\n", k.at.Stdout, k.at.Stderr)
		}
		k.b.WriteString("data: ")
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
