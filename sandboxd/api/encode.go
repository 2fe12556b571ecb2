package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"
)

// Results are encoded by hand: each answer and each record of the journal is
// one, and by reflection that was a tenth of the agent's work on a short
// command. Tests hold this against encoding/json.

// Encode is the result's JSON. Unlike json.Marshal it leaves <, > and & as
// they are: output is full of them.
func (r Result) Encode() ([]byte, error) {
	if r.peeked != nil {
		return r.peeked.encode(r.ExecutionID, r.Index), nil
	}
	e, ok := encoders.Get().(*encoder)
	if !ok {
		e = &encoder{}
	}
	defer e.free()
	e.text = append(e.text, '{')
	e.flag("success", r.Success)
	e.word("output", r.Output)
	e.word("error", r.Error)
	e.word("execution_id", r.ExecutionID)
	if len(r.Function) > 0 {
		e.raw("function", r.Function)
	}
	e.key("metadata")
	e.metadata(r.Metadata)
	if r.Index != nil {
		e.whole("index", int64(*r.Index))
	}
	e.text = append(e.text, '}')
	// A copy, because results are kept and the buffer has room to spare.
	return bytes.Clone(e.text), e.err
}

// AppendJSON appends the call's JSON, with Args and Timeout as they are. The
// error is that of Args that are no JSON.
func (c Call) AppendJSON(dst []byte) ([]byte, error) {
	e := encoder{text: append(dst, '{')}
	e.word("slot_id", c.SlotID)
	e.word("tool", c.Tool)
	if len(c.Args) > 0 {
		if !json.Valid(c.Args) {
			return nil, errArgs
		}
		e.key("args")
		e.text = append(e.text, c.Args...)
	}
	if c.ExecutionID != "" {
		e.word("execution_id", c.ExecutionID)
	}
	if !c.Timeout.IsZero() {
		e.key("timeout")
		e.text = append(e.text, c.Timeout.raw...)
	}
	if c.Token != nil {
		e.key("token")
		e.text = strconv.AppendUint(e.text, *c.Token, 10)
	}
	return append(e.text, '}'), e.err
}

var errArgs = errors.New("args are no JSON")

// MarshalJSON writes Details beside the fixed keys.
func (m Metadata) MarshalJSON() ([]byte, error) {
	var e encoder
	e.metadata(m)
	return e.text, e.err
}

var encoders sync.Pool // of *encoder

// keptEncoder is the largest buffer that is kept for the next result.
const keptEncoder = 64 << 10

// encoder writes JSON. What cannot be written sets err.
type encoder struct {
	text []byte
	err  error
}

func (e *encoder) free() {
	if cap(e.text) <= keptEncoder {
		e.text, e.err = e.text[:0], nil
		encoders.Put(e)
	}
}

func (e *encoder) metadata(m Metadata) {
	e.text = append(e.text, '{')
	if m.Receipt != nil {
		e.receipt(m.Receipt)
	}
	e.number("queue_ms", m.QueueMS)
	if m.Isolation != nil {
		e.key("isolation")
		text, err := m.Isolation.AppendJSON(e.text)
		if err != nil {
			e.fail(err)
		} else {
			e.text = text
		}
	}
	e.key("generation")
	e.text = strconv.AppendUint(e.text, m.Generation, 10)
	if m.ErrorKind != "" {
		e.word("error_kind", string(m.ErrorKind))
	}
	if m.Retryable != nil {
		e.flag("retryable", *m.Retryable)
	}
	if m.Executed != "" {
		e.word("executed", string(m.Executed))
	}
	if m.Replayed {
		e.flag("replayed", true)
	}
	for _, key := range slices.Sorted(maps.Keys(m.Details)) {
		if m.field(key) == nil {
			e.detail(key, m.Details[key])
		}
	}
	e.text = append(e.text, '}')
}

func (e *encoder) receipt(r *Receipt) {
	e.word("outcome", string(r.Outcome))
	e.whole("exit_code", int64(r.ExitCode))
	if r.Signal != "" {
		e.word("signal", r.Signal)
	}
	e.number("duration_ms", r.DurationMS)
	e.number("spawn_ms", r.SpawnMS)
	e.number("cpu_ms", r.CPUMS)
	e.whole("max_rss_bytes", r.MaxRSSBytes)
	e.flag("oom_killed", r.OOMKilled)
	e.whole("stdout_bytes", r.StdoutBytes)
	e.whole("stderr_bytes", r.StderrBytes)
	e.flag("truncated", r.Truncated)
	if r.Leftover != 0 {
		e.whole("leftover_processes", int64(r.Leftover))
	}
}

func (e *encoder) detail(key string, value any) {
	switch v := value.(type) {
	case string:
		e.word(key, v)
	case bool:
		e.flag(key, v)
	case int:
		e.whole(key, int64(v))
	case int64:
		e.whole(key, v)
	default:
		e.any(key, v)
	}
}

// any leaves the value to encoding/json.
func (e *encoder) any(key string, value any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		e.fail(err)
		return
	}
	e.key(key)
	e.text = append(e.text, bytes.TrimSuffix(b.Bytes(), []byte{'\n'})...)
}

// raw writes a value that is JSON already, on one line.
func (e *encoder) raw(key string, value json.RawMessage) {
	var b bytes.Buffer
	if err := json.Compact(&b, value); err != nil {
		e.fail(fmt.Errorf("%s is no JSON: %w", key, err))
		return
	}
	e.key(key)
	e.text = append(e.text, b.Bytes()...)
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) key(key string) {
	if e.text[len(e.text)-1] != '{' {
		e.text = append(e.text, ',')
	}
	e.text = appendText(e.text, key)
	e.text = append(e.text, ':')
}

func (e *encoder) word(key, value string) {
	e.key(key)
	e.text = appendText(e.text, value)
}

func (e *encoder) flag(key string, value bool) {
	e.key(key)
	e.text = strconv.AppendBool(e.text, value)
}

func (e *encoder) whole(key string, value int64) {
	e.key(key)
	e.text = strconv.AppendInt(e.text, value, 10)
}

func (e *encoder) number(key string, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		e.fail(fmt.Errorf("%s is no number: %v", key, value))
		return
	}
	e.key(key)
	format := byte('f')
	if abs := math.Abs(value); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	e.text = strconv.AppendFloat(e.text, value, format, -1, 64)
}

const hexDigits = "0123456789abcdef"

// appendText writes s as a JSON string; what is not UTF-8 becomes U+FFFD.
func appendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	begin := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := rune(c), 1
		if c >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(s[i:])
			// The two separators end lines in JavaScript.
			if (r != utf8.RuneError || size > 1) && r != '\u2028' && r != '\u2029' {
				i += size
				continue
			}
		}
		dst = appendEscape(append(dst, s[begin:i]...), r)
		i += size
		begin = i
	}
	return append(append(dst, s[begin:]...), '"')
}

// appendEscape writes a rune of the basic plane that cannot stand for itself.
func appendEscape(dst []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}
