package api

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"berth/slots"
)

// DecodeResult reads the JSON of a result as json.Unmarshal does, and several
// times faster where it is as Encode writes it.
func DecodeResult(text []byte) (Result, error) {
	var r Result
	s := scanner{text: text}
	if s.object(func(key []byte) bool { return s.resultField(&r, key) }) && s.at == len(text) {
		return r, nil
	}
	r = Result{}
	err := json.Unmarshal(text, &r)
	return r, err
}

// scanner reads JSON without space between its parts. Each of its methods
// reports false at anything unusual: then encoding/json has to judge.
type scanner struct {
	text  []byte
	at    int
	depth int // of the value that is passed over
}

func (s *scanner) resultField(r *Result, key []byte) bool {
	switch string(key) {
	case "success":
		return s.flag(&r.Success)
	case "output":
		return s.word(&r.Output)
	case "error":
		return s.word(&r.Error)
	case "execution_id":
		return s.word(&r.ExecutionID)
	case "function":
		begin := s.at
		if !s.skipValue() || !json.Valid(s.text[begin:s.at]) {
			return false
		}
		r.Function = bytes.Clone(s.text[begin:s.at])
		return true
	case "metadata":
		r.Metadata = Metadata{}
		return s.object(func(key []byte) bool { return s.metadataField(&r.Metadata, key) })
	case "index":
		r.Index = new(int)
		return s.whole(r.Index)
	}
	return false
}

func (s *scanner) metadataField(m *Metadata, key []byte) bool {
	if string(key) == "outcome" && m.Receipt == nil {
		m.Receipt = &Receipt{}
	}
	switch to := m.field(string(key)).(type) {
	case nil:
		return s.detail(m, string(key))
	case *float64:
		return s.number(to)
	case *string:
		return s.word(to)
	case *slots.Outcome:
		return s.word((*string)(to))
	case *slots.Kind:
		return s.word((*string)(to))
	case *slots.Executed:
		return s.word((*string)(to))
	case *bool:
		return s.flag(to)
	case **bool:
		*to = new(bool)
		return s.flag(*to)
	case *int:
		return s.whole(to)
	case *int64:
		n, err := strconv.ParseInt(string(s.numeral()), 10, 64)
		*to = n
		return err == nil
	case *uint64:
		n, err := strconv.ParseUint(string(s.numeral()), 10, 64)
		*to = n
		return err == nil
	case **slots.Isolation:
		*to = &slots.Isolation{}
		return s.object(func(key []byte) bool { return s.isolationField(*to, key) })
	}
	return false
}

func (s *scanner) isolationField(i *slots.Isolation, key []byte) bool {
	switch string(key) {
	case "level":
		var word string
		return s.word(&word) && i.Level.UnmarshalText([]byte(word)) == nil
	case "axes":
		if i.Axes == nil {
			i.Axes = slots.Axes{}
		}
		return s.object(func(key []byte) bool {
			var value string
			ok := s.word(&value)
			i.Axes[slots.Axis(key)] = value
			return ok
		})
	case "unsafe":
		return s.flag(&i.Unsafe)
	}
	return false
}

// detail reads a string or a bool; others are rare. A key of a Receipt that
// has not begun is left to encoding/json too.
func (s *scanner) detail(m *Metadata, key string) bool {
	if (&Receipt{}).field(key) != nil || s.at == len(s.text) {
		return false
	}
	if m.Details == nil {
		m.Details = map[string]any{}
	}
	if s.text[s.at] == '"' {
		var word string
		ok := s.word(&word)
		m.Details[key] = word
		return ok
	}
	var flag bool
	ok := s.flag(&flag)
	m.Details[key] = flag
	return ok
}

func (s *scanner) object(field func(key []byte) bool) bool {
	if !s.skip("{") {
		return false
	}
	if s.skip("}") {
		return true
	}
	for {
		key, plain := s.quoted()
		if !plain || !s.skip(":") || !field(key) {
			return false
		}
		if !s.skip(",") {
			return s.skip("}")
		}
	}
}

func (s *scanner) skip(part string) bool {
	if !bytes.HasPrefix(s.text[s.at:], []byte(part)) {
		return false
	}
	s.at += len(part)
	return true
}

// quoted returns what is between two quotes, and whether it stands for itself.
// It returns nil, and false, where there is no string.
func (s *scanner) quoted() (inside []byte, plain bool) {
	if s.at == len(s.text) || s.text[s.at] != '"' {
		return nil, false
	}
	plain = true
	for i := s.at + 1; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '"':
			inside = s.text[s.at+1 : i]
			s.at = i + 1
			return inside, plain
		case c == '\\':
			plain = false
			i++
		case c < ' ' || c >= utf8.RuneSelf:
			plain = false
		}
	}
	return nil, false
}

func (s *scanner) word(to *string) bool {
	begin := s.at
	inside, plain := s.quoted()
	if plain {
		*to = string(inside)
		return true
	}
	return inside != nil && json.Unmarshal(s.text[begin:s.at], to) == nil
}

func (s *scanner) flag(to *bool) bool {
	*to = s.skip("true")
	return *to || s.skip("false")
}

// numeral returns the characters of a number; nil when they make none.
func (s *scanner) numeral() []byte {
	begin := s.at
	for s.at < len(s.text) && bytes.IndexByte([]byte("+-.0123456789Ee"), s.text[s.at]) >= 0 {
		s.at++
	}
	if digits := s.text[begin:s.at]; json.Valid(digits) {
		return digits
	}
	return nil
}

func (s *scanner) number(to *float64) (ok bool) {
	n, err := strconv.ParseFloat(string(s.numeral()), 64)
	*to = n
	return err == nil
}

func (s *scanner) whole(to *int) bool {
	n, err := strconv.Atoi(string(s.numeral()))
	*to = n
	return err == nil
}
