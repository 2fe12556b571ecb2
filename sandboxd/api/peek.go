package api

import (
	"bytes"
	"strconv"

	"berth/slots"
)

// PeekResult reads the JSON of a result for who only passes it on: what tells
// whether and how the call was carried out, and where its time went. That is
// Success, Error, ExecutionID, Index and, of Metadata, QueueMS, ErrorKind,
// Retryable, Executed and Replayed, and Outcome, SpawnMS and DurationMS of the
// Receipt, and Function as it stands. All else stays empty, and stands where Encode puts it, unread: that
// writes the text again, with the ExecutionID and the Index of the time when
// it is called. The result keeps the text.
//
// A text that is not as Encode writes it is read as DecodeResult does. So is
// that of a call that could not be carried out, of which little is passed on.
func PeekResult(text []byte) (Result, error) {
	var r Result
	s := scanner{text: text}
	p := peeked{text: text}
	if s.object(func(key []byte) bool { return s.peekField(&r, &p, key) }) && s.at == len(text) && p.complete() && r.Metadata.ErrorKind == "" {
		r.peeked = &p
		return r, nil
	}
	return DecodeResult(text)
}

// peeked is the text of a result that was not read in full.
type peeked struct {
	text       []byte
	begin, end int // of the value of execution_id
	metadata   int // where its value ends
}

// complete reports whether the parts of the text that encode needs are there,
// in the order in which Encode writes them, and metadata is not empty.
func (p *peeked) complete() bool {
	return 0 < p.begin && p.end < p.metadata && p.text[p.metadata-len("{}")] != '{'
}

func (p *peeked) encode(executionID string, index *int) []byte {
	out := make([]byte, 0, len(p.text)+len(executionID)+roomToAdd)
	out = appendText(append(out, p.text[:p.begin]...), executionID)
	out = append(out, p.text[p.end:p.metadata]...)
	if index != nil {
		out = strconv.AppendInt(append(out, `,"index":`...), int64(*index), 10)
	}
	return append(out, '}')
}

// roomToAdd is what callers may add to an encoded result without a copy.
const roomToAdd = 256

func (s *scanner) peekField(r *Result, p *peeked, key []byte) bool {
	if p.metadata != 0 && string(key) != "index" {
		return false // encode leaves out what follows the metadata
	}
	switch string(key) {
	case "output":
		return s.skipWord()
	case "execution_id":
		p.begin = s.at
		ok := s.word(&r.ExecutionID)
		p.end = s.at
		return ok
	case "function":
		begin := s.at
		ok := s.skipValue()
		r.Function = s.text[begin:s.at:s.at]
		return ok
	case "metadata":
		ok := s.object(func(key []byte) bool { return s.peekMetadata(&r.Metadata, key) })
		p.metadata = s.at
		return ok
	case "index":
		if p.metadata == 0 {
			return false // encode would write a second one
		}
	}
	return s.resultField(r, key)
}

func (s *scanner) peekMetadata(m *Metadata, key []byte) bool {
	switch string(key) {
	case "outcome":
		if m.Receipt == nil {
			m.Receipt = &Receipt{}
		}
		return s.word((*string)(&m.Outcome))
	case "spawn_ms", "duration_ms":
		if m.Receipt == nil {
			return false // it is a detail, or the outcome comes later
		}
		return s.number(m.Receipt.field(string(key)).(*float64))
	case "queue_ms":
		return s.number(&m.QueueMS)
	case "error_kind":
		m.ErrorKind = slots.KindInternal // any: it is read in full then
		return s.skipWord()
	case "retryable":
		m.Retryable = new(bool)
		return s.flag(m.Retryable)
	case "executed":
		return s.word((*string)(&m.Executed))
	case "replayed":
		return s.flag(&m.Replayed)
	}
	return s.skipValue()
}

// skipWord passes over a string. What it holds is not looked at.
func (s *scanner) skipWord() bool {
	if !s.skip(`"`) {
		return false
	}
	for {
		n := bytes.IndexByte(s.text[s.at:], '"')
		if n < 0 {
			return false
		}
		s.at += n + 1
		escapes := 0
		for s.text[s.at-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return true
		}
	}
}

// maxDepth bounds how deep a value that is passed over may be: the stack is as
// deep. encoding/json judges beyond it.
const maxDepth = 100

// skipValue passes over any value.
func (s *scanner) skipValue() bool {
	if s.at == len(s.text) || s.depth == maxDepth {
		return false
	}
	s.depth++
	defer func() { s.depth-- }()
	switch s.text[s.at] {
	case '"':
		return s.skipWord()
	case '{':
		return s.object(func([]byte) bool { return s.skipValue() })
	case '[':
		return s.skipArray()
	case 't', 'f', 'n':
		return s.skip("true") || s.skip("false") || s.skip("null")
	}
	return len(s.numeral()) > 0
}

func (s *scanner) skipArray() bool {
	s.skip("[")
	if s.skip("]") {
		return true
	}
	for s.skipValue() {
		if !s.skip(",") {
			return s.skip("]")
		}
	}
	return false
}
