package function

import (
	"bytes"
	"encoding/json"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"berth/slots"
)

// schema is as much of a JSON schema as decides on types.
type schema struct {
	Type       types                      `json:"type"`
	Properties map[string]json.RawMessage `json:"properties"`
	Items      json.RawMessage            `json:"items"`
	AnyOf      []json.RawMessage          `json:"anyOf"`
	OneOf      []json.RawMessage          `json:"oneOf"`
	Parameters json.RawMessage            `json:"parameters"` // of a description of a whole function
}

// types are the names of types; a schema has one or a list of them.
type types []string

// UnmarshalJSON reads one name, or a list.
func (t *types) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*t = types{one}
		return nil
	}
	var list []string
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*t = list
	return nil
}

// parse reads a schema; one that cannot be read says nothing.
func parse(text json.RawMessage) (schema, bool) {
	var s schema
	if len(text) == 0 || json.Unmarshal(text, &s) != nil {
		return schema{}, false
	}
	return s, true
}

// parameters are the schemas of a function's parameters by name.
func parameters(text json.RawMessage) (map[string]json.RawMessage, error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	s, ok := parse(text)
	if !ok {
		return nil, slots.Errorf(slots.KindBadRequest, "tool.json_schema is no JSON schema")
	}
	if len(s.Parameters) > 0 {
		if s, ok = parse(s.Parameters); !ok {
			return nil, slots.Errorf(slots.KindBadRequest, "tool.json_schema.parameters is no JSON schema")
		}
	}
	return s.Properties, nil
}

// Bounds of a coercion.
const (
	maxDepth = 64        // of schemas and values within each other
	maxSteps = 2_000_000 // a value under a schema is one, and so are 64 bytes of it, which are read, and each property of a schema
)

// coercion is that of one run's arguments.
type coercion struct {
	parsed map[*byte]*schema // by where the text begins; nil: it says nothing
	steps  int
}

// parse reads a schema once, however many values it is about.
func (c *coercion) parse(text json.RawMessage) (schema, bool) {
	if len(text) == 0 {
		return schema{}, false
	}
	s, ok := c.parsed[&text[0]]
	if !ok {
		if made, reads := parse(text); reads {
			s = &made
		}
		c.parsed[&text[0]] = s
	}
	if s == nil {
		return schema{}, false
	}
	return *s, true
}

// coerceArgs gives every argument the type that the schema wants, if a text of
// it can have that. The error names the parameter.
func coerceArgs(jsonSchema json.RawMessage, args map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	want, err := parameters(jsonSchema)
	if err != nil {
		return nil, err
	}
	c := &coercion{parsed: map[*byte]*schema{}}
	out := make(map[string]json.RawMessage, len(args))
	for name, value := range args {
		coerced, ok, wanted := c.coerce(want[name], value, 0)
		if !ok {
			return nil, slots.Errorf(slots.KindBadRequest, "argument %.80q must be %s", name, wanted)
		}
		out[name] = coerced
	}
	return out, nil
}

// coerce gives the value a type of the schema. wanted names what it must be.
func (c *coercion) coerce(of, value json.RawMessage, depth int) (out json.RawMessage, ok bool, wanted string) {
	s, known := c.parse(of)
	if c.steps += 1 + len(value)/64 + len(s.Properties); c.steps > maxSteps {
		return nil, false, "smaller, or its schema simpler"
	}
	value = bytes.TrimSpace(value)
	if !known || depth > maxDepth || string(value) == "null" {
		return value, true, ""
	}
	choices := slices.Concat(s.AnyOf, s.OneOf)
	if len(s.Type) == 0 && len(choices) > 0 {
		return c.coerceChoice(choices, value, depth)
	}
	if len(s.Type) == 0 {
		return value, true, ""
	}
	if slices.Contains(s.Type, kindOf(value)) || kindOf(value) == "integer" && slices.Contains(s.Type, "number") {
		return c.coerceWithin(s, value, depth) // as it is
	}
	for _, t := range s.Type {
		if made, ok := coerceTo(t, value); ok {
			return c.coerceWithin(s, made, depth)
		}
	}
	return nil, false, article(s.Type)
}

// coerceChoice prefers a choice that takes the value as it is.
func (c *coercion) coerceChoice(choices []json.RawMessage, value json.RawMessage, depth int) (json.RawMessage, bool, string) {
	var first json.RawMessage
	var names []string
	for _, choice := range choices {
		made, ok, wanted := c.coerce(choice, value, depth+1)
		if ok && bytes.Equal(made, value) {
			return value, true, ""
		}
		if ok && first == nil {
			first = made
		}
		if wanted != "" {
			names = append(names, wanted)
		}
	}
	return first, first != nil, strings.Join(names, " or ")
}

// coerceWithin coerces what an array or object holds.
func (c *coercion) coerceWithin(s schema, value json.RawMessage, depth int) (json.RawMessage, bool, string) {
	switch kindOf(value) {
	case "array":
		var list []json.RawMessage
		if len(s.Items) == 0 || json.Unmarshal(value, &list) != nil {
			return value, true, ""
		}
		for i := range list {
			made, ok, wanted := c.coerce(s.Items, list[i], depth+1)
			if !ok {
				return nil, false, "an array of what is " + wanted
			}
			list[i] = made
		}
		return encoded(list, value)
	case "object":
		var members map[string]json.RawMessage
		if len(s.Properties) == 0 || json.Unmarshal(value, &members) != nil {
			return value, true, ""
		}
		changed := false
		for name, of := range s.Properties {
			have, there := members[name]
			if !there {
				continue
			}
			made, ok, wanted := c.coerce(of, have, depth+1)
			if !ok {
				return nil, false, "an object whose " + name + " is " + wanted
			}
			changed = changed || !bytes.Equal(made, have)
			members[name] = made
		}
		if !changed {
			return value, true, "" // with its members in their order
		}
		return encoded(members, value)
	}
	return value, true, ""
}

func encoded(v any, old json.RawMessage) (json.RawMessage, bool, string) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return old, true, ""
	}
	return bytes.TrimSpace(b.Bytes()), true, ""
}

// kindOf is the type of a value as schemas call it.
func kindOf(value json.RawMessage) string {
	if len(value) == 0 {
		return "null"
	}
	switch value[0] {
	case '"':
		return "string"
	case '[':
		return "array"
	case '{':
		return "object"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	if bytes.ContainsAny(value, ".eE") {
		return "number"
	}
	return "integer"
}

var (
	integerText = regexp.MustCompile(`^[+-]?[0-9]+$`)
	// wholeText may become an integer: a larger exponent would make of a few bytes
	// thousands.
	wholeText  = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,100})?([eE][+-]?[0-9]{1,2})?$`)
	numberText = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?$`)
)

// coerceTo makes a value of the type. Every digit of a number is kept.
func coerceTo(want string, value json.RawMessage) (json.RawMessage, bool) {
	var text string
	isText := kindOf(value) == "string" && json.Unmarshal(value, &text) == nil
	text = strings.TrimSpace(text)
	switch want {
	case "integer":
		if isText && integerText.MatchString(text) {
			return json.RawMessage(plainInteger(text)), true
		}
		if kindOf(value) != "number" || !wholeText.Match(value) {
			return nil, false
		}
		r, ok := new(big.Rat).SetString(string(value))
		if !ok || !r.IsInt() {
			return nil, false
		}
		return json.RawMessage(r.Num().String()), true
	case "number":
		return json.RawMessage(text), isText && numberText.MatchString(text)
	case "boolean":
		switch strings.ToLower(text) {
		case "true", "false":
			return json.RawMessage(strings.ToLower(text)), true
		}
	case "array", "object":
		return json.RawMessage(text), isText && json.Valid([]byte(text)) && kindOf(json.RawMessage(text)) == want
	case "string":
		if k := kindOf(value); k == "integer" || k == "number" || k == "boolean" {
			return json.RawMessage(`"` + string(value) + `"`), true
		}
	}
	return nil, false
}

// plainInteger is the integer as JSON writes it. It takes time as its length:
// the text may be as long as a request.
func plainInteger(text string) string {
	digits := strings.TrimLeft(strings.TrimLeft(text, "+-"), "0")
	switch {
	case digits == "":
		return "0"
	case text[0] == '-':
		return "-" + digits
	}
	return digits
}

// article names types in a sentence.
func article(of types) string {
	words := map[string]string{"integer": "an integer", "number": "a number", "boolean": "true or false", "array": "an array", "object": "an object", "string": "a string"}
	var out []string
	for _, t := range of {
		if word, ok := words[t]; ok {
			out = append(out, word)
		}
	}
	if len(out) == 0 {
		return "of another type"
	}
	return strings.Join(out, " or ")
}
