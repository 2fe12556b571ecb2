package api

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

// byReflection is what encoding/json makes of the same result.
func byReflection(t *testing.T, r Result) string {
	t.Helper()
	encode := func(v any) []byte {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(v))
		return b.Bytes()
	}
	type plain Metadata // without its methods
	var all map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(encode(plain(r.Metadata)), &all))
	for key, value := range r.Metadata.Details {
		if r.Metadata.field(key) == nil {
			all[key] = encode(value)
		}
	}
	whole := map[string]any{
		"success": r.Success, "output": r.Output, "error": r.Error, "execution_id": r.ExecutionID, "metadata": all,
	}
	if len(r.Function) > 0 {
		whole["function"] = r.Function
	}
	return string(encode(whole))
}

func FuzzAResultIsEncodedAsByReflection(f *testing.F) {
	f.Add("out\n\t\x00\x1b[31m<&>\"\\\u2028\u2029 é 𝄞 \xff \xed\xa0\x80", "error", 1.5, int64(-1), true, "key", uint8(0xff))
	f.Add("", "\r\x7f\ufffd", 1e-7, int64(math.MaxInt64), false, "outcome", uint8(0))
	f.Add("x", "", 1e21, int64(math.MinInt64), false, "\"\n", uint8(0x55))
	f.Add("x", "", -5e-324, int64(7), true, "", uint8(0xaa))
	f.Fuzz(func(t *testing.T, output, word string, number float64, whole int64, flag bool, key string, parts uint8) {
		if math.IsNaN(number) || math.IsInf(number, 0) {
			t.Skip("JSON has no such number") // a fuzz input, not a test
		}
		r := Result{Success: flag, Output: output, Error: word, ExecutionID: key}
		if parts&1 != 0 {
			r.Metadata.Receipt = &Receipt{
				Outcome: slots.Outcome(word), ExitCode: int(int32(whole)), Signal: key, DurationMS: number, CPUMS: -number, MaxRSSBytes: whole, //nolint:gosec // cut on purpose
				OOMKilled: flag, StdoutBytes: whole, Truncated: !flag, Leftover: int(parts),
			}
		}
		if parts&2 != 0 {
			r.Metadata.Isolation = &slots.Isolation{Level: slots.LevelNS, Axes: slots.Axes{slots.AxisFS: "mntns", slots.AxisIPC: "ipcns"}}
		}
		if parts&4 != 0 {
			r.Metadata.Isolation = &slots.Isolation{Axes: slots.Axes{slots.Axis(key): word}, Unsafe: flag, Weak: []string{word}}
		}
		if parts&8 != 0 {
			r.Metadata.Details = map[string]any{
				key: word, word: number, "a": whole, "b": flag, "c": nil, "d": []any{output, map[string]any{key: flag}}, "e": int(parts),
				"queue_ms": "never", "signal": "perhaps",
			}
		}
		if parts&16 != 0 {
			r.Metadata.ErrorKind, r.Metadata.Executed, r.Metadata.Retryable = slots.Kind(word), slots.Executed(key), &flag
		}
		if parts&32 != 0 {
			function, err := json.Marshal(FunctionResult{Status: key, Text: output, FuncReturn: json.RawMessage("12345678901234567890123"), Stdout: []string{word}})
			require.NoError(t, err)
			r.Function = function
		}
		r.Metadata.Replayed, r.Metadata.QueueMS, r.Metadata.Generation = flag, number, uint64(whole) //nolint:gosec // any number will do
		text, err := r.Encode()
		require.NoError(t, err)
		require.JSONEq(t, byReflection(t, r), string(text))
		assert.NotContains(t, string(text), "\n")
		marshalled, err := json.Marshal(r)
		require.NoError(t, err)
		assert.JSONEq(t, string(text), string(marshalled))

		read, err := DecodeResult(text)
		require.NoError(t, err)
		var slowly Result
		require.NoError(t, json.Unmarshal(text, &slowly))
		assert.Equal(t, slowly, read)
	})
}

func FuzzAResultIsReadAsByReflection(f *testing.F) {
	for _, text := range []string{
		`{"success":true,"output":"a\nb","error":"","execution_id":"x","metadata":{"outcome":"exited","exit_code":0,"duration_ms":1.5,"queue_ms":0,` +
			`"isolation":{"level":"ns","axes":{"fs":"mntns"},"weak":["x"]},"generation":7,"retryable":true,"shell":"bash","n":1},"index":3}`,
		`{"function":{"func_return":[1e400,{"a":"\n"}]},"function":{ "x":1},"metadata":{}}`, `{"function":null,"metadata":{}}`, `{"function":"\q","metadata":{}}`,
		`{"metadata":{"exit_code":1,"outcome":"exited","outcome":"x","exit_code":2}}`,
		`{"metadata":{"isolation":{"axes":{"fs":"a"},"axes":{"ipc":"b"},"level":"ns","level":"none"}},"metadata":{}}`,
		`{"success":true,"Success":false,"output":null,"metadata":null,"index":null}`,
		`{"metadata":{"queue_ms":1e400,"exit_code":1.0,"generation":-1}} `,
		`{"output":"\ud800\u0041"} x`, `{"output":"` + "\xff" + `"}`, `{"metadata":{"queue_ms":01}}`, `{}`, `[]`, ``,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		read, err := DecodeResult(text)
		var slowly Result
		if refused := json.Unmarshal(text, &slowly); refused != nil {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		assert.Equal(t, slowly, read)
	})
}

func TestWhatJSONCannotSayIsAnErrorAndSpoilsNoOther(t *testing.T) {
	for _, r := range []Result{
		{Metadata: Metadata{QueueMS: math.NaN()}},
		{Function: json.RawMessage("{")},
		{Metadata: Metadata{Receipt: &Receipt{CPUMS: math.Inf(1)}}},
		{Metadata: Metadata{Details: map[string]any{"f": func() {}}}},
	} {
		_, err := r.Encode()
		require.Error(t, err)
		_, err = json.Marshal(r)
		require.Error(t, err)
		text, err := Result{Output: "<&>"}.Encode()
		require.NoError(t, err)
		//nolint:testifylint // as it is on the wire
		assert.Equal(t, `{"success":false,"output":"<&>","error":"","execution_id":"","metadata":{"queue_ms":0,"generation":0}}`, string(text))
	}
}
