package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"berth/slots"
)

// ErrInvalidJSON is the reference's answer to a body that is not the JSON it
// has to be.
var ErrInvalidJSON = slots.Errorf(slots.KindBadRequest, "Invalid JSON")

// IsObject reports whether the text, which may be invalid, starts like a
// JSON object.
func IsObject(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) > 0 && text[0] == '{'
}

// IsArgs reports whether a tool's arguments, which are valid JSON, can be taken:
// an object, null or none.
func IsArgs(args json.RawMessage) bool {
	text := bytes.TrimLeft(args, " \t\r\n")
	return len(text) == 0 || text[0] == '{' || string(text) == "null"
}

// Decode reads a JSON object and ignores the fields that v lacks.
func Decode(text []byte, v any) error {
	if !IsObject(text) {
		return ErrInvalidJSON
	}
	return JSONError(json.Unmarshal(text, v))
}

// DecodeStrict reads a JSON object and refuses the fields that v lacks.
func DecodeStrict(text []byte, v any) error {
	if !IsObject(text) {
		return slots.Errorf(slots.KindBadRequest, "request body must be a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return slots.Errorf(slots.KindBadRequest, "unknown field %.80s", name)
		}
		return JSONError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return ErrInvalidJSON
	}
	return nil
}

// JSONError turns what a decoder says into a sentence for the caller that
// holds no names of our types.
func JSONError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*slots.Error](err); ok {
		return e
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		name := wrong.Field
		if name == "" {
			name = "the body"
		}
		return slots.Errorf(slots.KindBadRequest, "%s must be %s", name, wanted(wrong))
	}
	return ErrInvalidJSON
}

// wanted names the JSON type that a field should have had.
func wanted(e *json.UnmarshalTypeError) string {
	word := e.Type.Kind().String()
	switch {
	case word == "string":
		return "a string"
	case word == "bool":
		return "true or false"
	case strings.HasPrefix(word, "uint"):
		return "an integer not below 0"
	case strings.HasPrefix(word, "int"):
		return "an integer"
	case strings.HasPrefix(word, "float"):
		return "a number"
	case word == "slice":
		return "an array"
	case word == "map", word == "struct":
		return "an object"
	default:
		return fmt.Sprintf("of another type than %s", e.Value)
	}
}
