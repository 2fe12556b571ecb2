package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

// fate is what PeekResult reads of a result.
func fate(r Result) Result {
	m := Metadata{
		QueueMS: r.Metadata.QueueMS, ErrorKind: r.Metadata.ErrorKind, Retryable: r.Metadata.Retryable,
		Executed: r.Metadata.Executed, Replayed: r.Metadata.Replayed,
	}
	if ran := r.Metadata.Receipt; ran != nil {
		m.Receipt = &Receipt{Outcome: ran.Outcome, SpawnMS: ran.SpawnMS, DurationMS: ran.DurationMS}
	}
	return Result{Success: r.Success, Error: r.Error, ExecutionID: r.ExecutionID, Function: r.Function, Metadata: m, Index: r.Index}
}

func FuzzAResultThatIsPassedOnSaysTheSame(f *testing.F) {
	const whole = `{"success":true,"output":"a\n\\\"b\\","error":"","execution_id":"x\u0041","metadata":{"outcome":"exited","exit_code":0,` +
		`"duration_ms":1.5,"spawn_ms":0.5,"queue_ms":2,"isolation":{"level":"ns","axes":{"fs":"mntns"},"weak":["x"]},"generation":7,"retryable":true,` +
		`"executed":"yes","replayed":true,"list":[1,[],{"a":null}],"text":"\""},"index":3}`
	for _, text := range []string{
		whole, strings.Replace(whole, `"outcome"`, `"error_kind":"fenced","outcome"`, 1), strings.Replace(whole, `"outcome":"exited",`, ``, 1),
		strings.Replace(whole, `,"index":3`, `,"output":"later"`, 1), strings.Replace(whole, `{"success"`, `{"index":1,"success"`, 1),
		strings.Replace(whole, `"metadata"`, `"function":{"func_return":12345678901234567890,"text":"\"\u2028"},"metadata"`, 1),
		`{"execution_id":"","function":{"a":1},"metadata":{"a":1},"function":2}`, `{"function":null,"execution_id":"","metadata":{"a":1}}`,
		`{"execution_id":"","metadata":{}}`, `{"execution_id":"","metadata":{"a":1}}`, `{"metadata":{"a":1},"execution_id":"x"}`,
		`{"execution_id":"x","metadata":{"a":1},"metadata":{"b":2}}`, `{"execution_id":"a","execution_id":"b","metadata":{"a":"\\"}}`,
		`{"success":true}`, `{"output":"`, `[]`, ``,
	} {
		f.Add([]byte(text), "new\"id", 7)
	}
	f.Fuzz(func(t *testing.T, text []byte, id string, index int) {
		peek, err := PeekResult(text)
		read, refused := DecodeResult(text)
		if refused != nil {
			return // what is passed on unread may be nonsense, but the above must not panic
		}
		require.NoError(t, err)
		assert.Equal(t, fate(read), fate(peek))
		again := func(r Result) Result {
			encoded, err := r.Encode()
			require.NoError(t, err)
			require.True(t, json.Valid(encoded), "%s", encoded)
			out, err := DecodeResult(encoded)
			require.NoError(t, err)
			return out
		}
		for _, at := range []*int{nil, &index} {
			read.ExecutionID, read.Index = id, at
			peek.ExecutionID, peek.Index = id, at
			assert.Equal(t, again(read), again(peek))
		}
	})
}

func TestOnlyWhatEncodeHasWrittenIsPassedOnUnread(t *testing.T) {
	retryable := true
	carried := Result{Success: true, Output: "x\n", ExecutionID: "a", Metadata: Metadata{
		Receipt: &Receipt{Outcome: slots.OutcomeExited, ExitCode: 3, SpawnMS: 1, DurationMS: 2}, Retryable: &retryable, Details: map[string]any{"shell": "sh"},
	}}
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for name, c := range map[string]struct {
		result Result
		edit   func(text string) string
		peeked bool
	}{
		"a result":      {carried, strings.Clone, true},
		"a file's":      {Result{Success: true, Output: "text"}, strings.Clone, true},
		"quotations":    {Result{Output: `\\"\"`, Metadata: Metadata{Details: map[string]any{"a": `\"`, "b": []any{`"`, 1}}}}, strings.Clone, true},
		"a deep value":  {carried, func(text string) string { return strings.Replace(text, `"sh"`, deep, 1) }, false},
		"a refusal":     {Refused("a", slots.Errorf(slots.KindFenced, "no")), strings.Clone, false},
		"white space":   {carried, func(text string) string { return " " + text }, false},
		"a missing key": {carried, func(text string) string { return strings.Replace(text, `"success":true,`, "", 1) }, true},
		"a tail":        {carried, func(text string) string { return text[:len(text)-1] + `,"more":1}` }, false},
	} {
		text, err := c.result.Encode()
		require.NoError(t, err)
		r, err := PeekResult([]byte(c.edit(string(text))))
		require.NoError(t, err, name)
		assert.Equal(t, c.peeked, r.peeked != nil, name)
		assert.Equal(t, c.peeked || c.result.Output == "", r.Output == "", name)
	}
}

func FuzzACallIsEncodedAsByReflection(f *testing.F) {
	f.Add("slot_0", "bash", `{"command":"a < b && c\n"}`, "id", "2.5", uint64(7), true)
	f.Add("", "\x00\"é\u2028\xff", ` [1, {"a" : null}] `, "", "", uint64(1<<63), false)
	f.Add("x", "y", `{"a":`, "z", "null", uint64(0), true)
	f.Fuzz(func(t *testing.T, slot, tool, args, id, timeout string, token uint64, leased bool) {
		c := Call{SlotID: slot, Tool: tool, Args: json.RawMessage(args), ExecutionID: id}
		if json.Valid([]byte(timeout)) {
			require.NoError(t, json.Unmarshal([]byte(timeout), &c.Timeout))
		}
		if leased {
			c.Token = &token
		}
		text, err := c.AppendJSON([]byte("before "))
		slowly, refused := json.Marshal(c)
		if refused != nil {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		rest, found := strings.CutPrefix(string(text), "before ")
		require.True(t, found)
		assert.JSONEq(t, string(slowly), rest)
		var one, other Call
		require.NoError(t, json.Unmarshal(slowly, &one))
		require.NoError(t, json.Unmarshal([]byte(rest), &other))
		one.Args, other.Args = nil, nil // they differ in white space and escapes
		assert.Equal(t, one, other)
	})
}
