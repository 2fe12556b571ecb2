package tool

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"berth/slots"
)

// Limits on arguments. The kernel refuses a longer environment entry, and
// more than a quarter of the stack for arguments and environment together.
const (
	maxEnvEntry = 128<<10 - 1 // bytes of NAME=VALUE
	maxEnvTotal = 1 << 20     // bytes of all entries
	maxCwd      = 4095        // bytes of a path
)

// arguments reads the arguments of one call, strictly by type: an argument of
// the wrong type is an error, null counts as absent, an unknown one is
// ignored. The first error is kept in err and makes the rest irrelevant.
type arguments struct {
	fields map[string]json.RawMessage
	err    *slots.Error
}

func parseArgs(raw json.RawMessage) *arguments {
	a := &arguments{}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		return a
	}
	if err := json.Unmarshal(raw, &a.fields); err != nil {
		a.err = slots.Errorf(slots.KindBadRequest, "args must be a JSON object, not %s", jsonType(raw))
	}
	return a
}

// refuse keeps the first error about the argument.
func (a *arguments) refuse(name, format string, rest ...any) {
	if a.err == nil {
		a.err = slots.Errorf(slots.KindBadRequest, `argument "%s" `+format, append([]any{name}, rest...)...)
	}
}

// get decodes the argument into v; false when it is absent or wrong.
func (a *arguments) get(name, wanted string, v any) bool {
	raw, ok := a.fields[name]
	if !ok || string(raw) == "null" {
		return false
	}
	if err := json.Unmarshal(raw, v); err != nil {
		a.refuse(name, "must be %s, not %s", wanted, jsonType(raw))
		return false
	}
	return true
}

// text is a string argument without NUL bytes; "" when absent.
func (a *arguments) text(name string) string {
	var v string
	if a.get(name, "a string", &v) && strings.IndexByte(v, 0) >= 0 {
		a.refuse(name, "must not contain a NUL byte")
	}
	return v
}

// need is text that must be there; "" is there.
func (a *arguments) need(name string) string {
	v := a.text(name)
	if raw, ok := a.fields[name]; !ok || string(raw) == "null" {
		a.refuse(name, "is missing")
	}
	return v
}

// content is a string argument that may hold anything and must be there.
func (a *arguments) content(name string) string {
	var v string
	if raw, ok := a.fields[name]; !ok || string(raw) == "null" {
		a.refuse(name, "is missing")
	}
	a.get(name, "a string", &v)
	return v
}

// input is a string argument that may hold anything; absent is told apart
// from empty.
func (a *arguments) input(name string) (string, bool) {
	var v string
	ok := a.get(name, "a string", &v)
	return v, ok
}

// flag is a boolean argument.
func (a *arguments) flag(name string, byDefault bool) bool {
	v := byDefault
	a.get(name, "true or false", &v)
	return v
}

// count is a whole number in [least, most].
func (a *arguments) count(name string, byDefault, least, most int) int {
	var v float64
	if !a.get(name, "a whole number", &v) {
		return byDefault
	}
	if v != math.Trunc(v) {
		a.refuse(name, "must be a whole number, not %.40s", a.fields[name])
		return byDefault
	}
	if v < float64(least) || v > float64(most) {
		a.refuse(name, "must be from %d to %d, not %.40s", least, most, a.fields[name])
		return byDefault
	}
	return int(v)
}

// word is a string out of the list, whose first is the default.
func (a *arguments) word(name string, list ...string) string {
	v := a.text(name)
	if v == "" {
		return list[0]
	}
	if slices.Contains(list, v) {
		return v
	}
	a.refuse(name, "must be one of %s, not %.40q", strings.Join(list, ", "), v)
	return list[0]
}

// words is a list of strings, or one string as a list of one.
func (a *arguments) words(name string) []string {
	raw := a.fields[name]
	if len(raw) > 0 && raw[0] == '"' {
		return []string{a.text(name)}
	}
	var v []string
	a.get(name, "a string or a list of strings", &v)
	return v
}

// environment is an object of strings as sorted NAME=VALUE entries.
func (a *arguments) environment(name string) []string {
	var fields map[string]json.RawMessage
	if !a.get(name, "an object of strings", &fields) {
		return nil
	}
	entries := make([]string, 0, len(fields))
	total := 0
	for _, k := range sortedKeys(fields) {
		var v string
		if string(fields[k]) == "null" || json.Unmarshal(fields[k], &v) != nil {
			a.refuse(name, "must hold strings only: %.40q is %s", k, jsonType(fields[k]))
			return nil
		}
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00"):
			a.refuse(name, `has the name %.40q, which is empty or contains "=" or a NUL byte`, k)
		case strings.IndexByte(v, 0) >= 0:
			a.refuse(name, "has a NUL byte in the value of %.40q", k)
		case len(k)+1+len(v) > maxEnvEntry:
			a.refuse(name, "has %d bytes under %.40q (max %d)", len(k)+1+len(v), k, maxEnvEntry)
		}
		entries = append(entries, k+"="+v)
		// Each entry also costs its NUL and its pointer.
		if total += len(k) + len(v) + 10; total > maxEnvTotal {
			a.refuse(name, "is larger than %d bytes in all", maxEnvTotal)
		}
		if a.err != nil {
			return nil
		}
	}
	return entries
}

// jsonType names the type of a JSON text for a message.
func jsonType(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || !json.Valid(raw) {
		return "invalid JSON"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}
