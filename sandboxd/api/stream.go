package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Content types of streamed answers.
const (
	TypeNDJSON      = "application/x-ndjson"
	TypeEventStream = "text/event-stream"
)

// EventName names one kind of event of a streamed execution.
type EventName string

// The events, in the order in which they come: one start, any number of
// chunks, gaps and pings, and always one result as the last.
const (
	EventStart  EventName = "start"
	EventChunk  EventName = "chunk"
	EventGap    EventName = "gap"
	EventPing   EventName = "ping" // only in NDJSON; an event stream has comments for it
	EventResult EventName = "result"
)

// Start is the payload of EventStart.
type Start struct {
	ExecutionID string `json:"execution_id"`
}

// Chunk is the payload of EventChunk: bytes of one stream from Offset on.
// Bytes that are valid UTF-8 travel as Data, others as DataBase64. A code
// point is never split between two chunks.
type Chunk struct {
	Stream     string `json:"stream"` // "stdout" or "stderr"
	Offset     int64  `json:"offset"` // bytes
	Data       string `json:"data,omitempty"`
	DataBase64 []byte `json:"data_base64,omitempty"`
}

// NewChunk makes the chunk of those bytes, which it copies.
func NewChunk(stream string, offset int64, p []byte) Chunk {
	if utf8.Valid(p) {
		return Chunk{Stream: stream, Offset: offset, Data: string(p)}
	}
	return Chunk{Stream: stream, Offset: offset, DataBase64: bytes.Clone(p)}
}

// Bytes are the chunk's bytes, in whichever form they travelled.
func (c Chunk) Bytes() []byte {
	if c.DataBase64 != nil {
		return c.DataBase64
	}
	return []byte(c.Data)
}

// Gap is the payload of EventGap: bytes [From, To) of the stream are no
// longer kept.
type Gap struct {
	Stream string `json:"stream"`
	From   int64  `json:"from"`
	To     int64  `json:"to"`
}

// Event is one event of a streamed execution: a line of NDJSON, or the data
// of a server-sent event. The payload's keys stand beside "event". Exactly
// the payload of its Name is set; a ping has none.
type Event struct {
	Name   EventName
	Start  *Start
	Chunk  *Chunk
	Gap    *Gap
	Result *Result
}

// payload is where the event's payload stands, made when it was not there.
func (e *Event) payload() (any, error) {
	switch e.Name {
	case EventStart:
		e.Start = orNew(e.Start)
		return e.Start, nil
	case EventChunk:
		e.Chunk = orNew(e.Chunk)
		return e.Chunk, nil
	case EventGap:
		e.Gap = orNew(e.Gap)
		return e.Gap, nil
	case EventResult:
		e.Result = orNew(e.Result)
		return e.Result, nil
	case EventPing:
		return &struct{}{}, nil
	default:
		return nil, fmt.Errorf("unknown event %.40q", string(e.Name))
	}
}

func orNew[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// MarshalJSON writes {"event":NAME, …payload}.
func (e Event) MarshalJSON() ([]byte, error) {
	payload, err := e.payload()
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(payload)
	if err != nil {
		return nil, err
	}
	return AppendEvent(make([]byte, 0, len(body)+32), e.Name, body), nil
}

// AppendEvent appends the event whose payload is the encoded object.
func AppendEvent(b []byte, name EventName, payload []byte) []byte {
	b = append(b, `{"event":"`...)
	b = append(b, name...)
	b = append(b, '"')
	if len(payload) > 2 {
		b = append(b, ',')
	}
	return append(b, payload[1:]...)
}

// UnmarshalJSON reads what MarshalJSON writes; an unknown event is an error.
func (e *Event) UnmarshalJSON(b []byte) error {
	var head struct {
		Event EventName `json:"event"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return err
	}
	*e = Event{Name: head.Event}
	payload, err := e.payload()
	if err != nil {
		return err
	}
	return json.Unmarshal(b, payload)
}

// ExecutionState answers GET /v1/executions/{id} for an execution that has
// not ended; one that has is answered with its Result.
type ExecutionState struct {
	ExecutionID string `json:"execution_id"`
	State       string `json:"state"` // "queued" or "running"
}

// The states of an execution that has not ended.
const (
	StateQueued  = "queued"
	StateRunning = "running"
)
