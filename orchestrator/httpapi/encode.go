package httpapi

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"berth/orchestrator/calls"
	"berth/sandboxd/api"
)

// timing is where a call's time went, in milliseconds. It is timing_ms of
// every answer's metadata.
type timing struct {
	Queue    float64 `json:"queue"`    // waited for its turn in its slot
	Acquire  float64 `json:"acquire"`  // waited for a slot
	Dispatch float64 `json:"dispatch"` // collected for a batch
	Spawn    float64 `json:"spawn"`    // making its process
	Run      float64 `json:"run"`      // its process ran
	Transfer float64 `json:"transfer"` // on the way, and the rest
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

func newTiming(a calls.Answer) timing {
	t := a.Timing
	return timing{
		Queue: milliseconds(t.Queue), Acquire: milliseconds(a.Acquire), Dispatch: milliseconds(t.Dispatch),
		Spawn: milliseconds(t.Spawn), Run: milliseconds(t.Run), Transfer: milliseconds(t.Transfer),
	}
}

// keyTiming is where a timing stands in the metadata.
const keyTiming = "timing_ms"

// append writes the timing's JSON.
func (t timing) append(b []byte) []byte {
	add := func(key string, ms float64) {
		b = append(b, key...)
		b = strconv.AppendFloat(b, ms, 'f', -1, 64)
	}
	add(`{"queue":`, t.Queue)
	add(`,"acquire":`, t.Acquire)
	add(`,"dispatch":`, t.Dispatch)
	add(`,"spawn":`, t.Spawn)
	add(`,"run":`, t.Run)
	add(`,"transfer":`, t.Transfer)
	return append(b, '}')
}

// timed is the JSON of a result with the timing in its metadata. It is put
// into the text where that ends, because to encode it as one of the result's
// details takes several times longer.
func timed(r api.Result, t timing) ([]byte, error) {
	delete(r.Metadata.Details, keyTiming) // a tool's own is not passed on
	index := r.Index
	r.Index = nil
	text, err := r.Encode()
	if err == nil && bytes.Contains(text, []byte(`"`+keyTiming+`":`)) {
		text, err = untimed(text) // it was passed on unread
	}
	if err != nil {
		return nil, err
	}
	const ends = "}}" // of the metadata, which is never empty, and of the result
	text = append(text[:len(text)-len(ends)], `,"`+keyTiming+`":`...)
	text = append(t.append(text), ends...)
	if index != nil {
		text = api.WithIndex(text, *index)
	}
	return text, nil
}

// untimed is the JSON of a result without what a tool says of its own timing.
func untimed(text []byte) ([]byte, error) {
	r, err := api.DecodeResult(text)
	if err != nil {
		return nil, err
	}
	delete(r.Metadata.Details, keyTiming)
	return r.Encode()
}

// callAnswer is the JSON that answers POST /execute: that of a result whose
// execution is known by another name. A nil uniqID is null.
func callAnswer(result []byte, uniqID *string) ([]byte, error) {
	// In a text, every quotation mark has a backslash before it: this is the key.
	head, tail, _ := bytes.Cut(result, []byte(`,"execution_id":`))
	end := bytes.Index(tail, []byte(`,"metadata":`))
	name, err := json.Marshal(uniqID)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(result)+len(name)+16)
	out = append(append(out, head...), `,"uniq_id":`...)
	return append(append(out, name...), tail[end:]...), nil
}
