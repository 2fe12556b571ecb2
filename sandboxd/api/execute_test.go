package api

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

const (
	defaultTimeout = 30 * time.Second
	maxTimeout     = time.Hour
)

func TestS14TimeoutIsANumberOfSecondsAboveZeroUpToTheMaximum(t *testing.T) {
	for sent, want := range map[string]time.Duration{
		`{}`:                             defaultTimeout,
		`{"timeout":null}`:               defaultTimeout,
		`{"timeout": 1}`:                 time.Second,
		`{"timeout":0.5}`:                500 * time.Millisecond,
		`{"timeout":3600}`:               time.Hour,
		`{"timeout":3.6e3}`:              time.Hour,
		`{"timeout":0.0001}`:             time.Millisecond,
		`{"timeout":5e-324}`:             time.Millisecond,
		`{"timeout":30,"timeout":7}`:     7 * time.Second,
		`{"timeout":7,"timeout":null}`:   defaultTimeout,
		`{"timeout":1.0000000000000001}`: time.Second,
	} {
		var call Call
		require.NoError(t, json.Unmarshal([]byte(sent), &call), sent)
		got, err := call.Timeout.Duration(defaultTimeout, maxTimeout)
		require.NoError(t, err, sent)
		assert.Equal(t, want, got, sent)
	}
}

func TestS14TimeoutThatIsNoneGetsASentence(t *testing.T) {
	for sent, part := range map[string]string{
		`0`:                                   "above 0",
		`-0`:                                  "above 0",
		`-1`:                                  "above 0",
		`-1e308`:                              "above 0",
		`1e308`:                               "above the maximum of 3600",
		`3600.001`:                            "above the maximum of 3600",
		`9223372036854775.808`:                "above the maximum", // 2^63 milliseconds
		`9223372036854775808`:                 "above the maximum",
		`1e400`:                               "must be a number",
		`"5"`:                                 "must be a number",
		`"NaN"`:                               "must be a number",
		`true`:                                "must be a number",
		`[5]`:                                 "must be a number",
		`{}`:                                  "must be a number",
		`"` + strings.Repeat("9", 1000) + `"`: "must be a number",
	} {
		var call Call
		require.NoError(t, json.Unmarshal([]byte(`{"timeout":`+sent+`}`), &call), "a call with a wrong timeout is still a call")
		_, err := call.Timeout.Duration(defaultTimeout, maxTimeout)
		require.ErrorContains(t, err, part, sent)
		assert.Less(t, len(err.Error()), 120, "what was sent is cut")
	}
}

func TestS14SecondsTakesEveryFloat(t *testing.T) {
	d, err := Seconds(2.5).Duration(defaultTimeout, maxTimeout)
	require.NoError(t, err)
	assert.Equal(t, 2500*time.Millisecond, d)
	for _, s := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1, 1e308} {
		timeout := Seconds(s)
		_, err := timeout.Duration(defaultTimeout, maxTimeout)
		require.Error(t, err, s)
		_, err = json.Marshal(Call{Timeout: timeout})
		assert.NoError(t, err, s)
	}
}

func TestTheDefaultTimeoutIsCutToTheMaximum(t *testing.T) {
	d, err := Timeout{}.Duration(time.Hour, time.Minute)
	require.NoError(t, err)
	assert.Equal(t, time.Minute, d)
}

func TestACallTravelsUnchanged(t *testing.T) {
	for _, text := range []string{
		`{"slot_id":"slot_0","tool":"bash"}`,
		`{"slot_id":"slot_0","tool":"bash","args":{"command":"true"},"execution_id":"x","timeout":0.50,"token":7}`,
		`{"slot_id":"","tool":"","args":{"n":1e400,"big":12345678901234567890}}`,
	} {
		var call Call
		require.NoError(t, json.Unmarshal([]byte(text), &call))
		back, err := json.Marshal(call)
		require.NoError(t, err)
		assert.Equal(t, text, string(back))
	}
}

func TestF17ACallIsReadOrRefusedWhateverIsSent(t *testing.T) {
	deep := strings.Repeat("[", 100_000)
	for name, c := range map[string]struct {
		body string
		ok   bool
	}{
		"depth 100000":               {`{"args":` + deep + strings.Repeat("]", 100_000) + `}`, false},
		"depth 100000, never closed": {deep, false},
		"unknown fields":             {`{"slot_id":"s","color":{"a":[1,2]},"":0}`, true},
		"duplicate keys":             {`{"slot_id":"a","slot_id":"s"}`, true},
		"NaN":                        {`{"timeout":NaN}`, false},
		"Infinity":                   {`{"args":{"x":Infinity}}`, false},
		"1e400 in args":              {`{"slot_id":"s","args":{"x":1e400}}`, true},
		"lone surrogate":             {`{"slot_id":"s","args":{"command":"\ud800"}}`, true},
		"byte order mark":            {"\xef\xbb\xbf" + `{"slot_id":"s"}`, false},
		"trailing garbage":           {`{"slot_id":"s"}x`, false},
		"two values":                 {`{"slot_id":"s"}{}`, false},
		"an array":                   {`[]`, false},
		"a number for a string":      {`{"slot_id":5}`, false},
		"a string for a token":       {`{"token":"5"}`, false},
		"a negative token":           {`{"token":-1}`, false},
		"a token above 64 bits":      {`{"token":18446744073709551616}`, false},
		"a fraction for a token":     {`{"token":1.5}`, false},
		"args of another type":       {`{"slot_id":"s","args":"text"}`, true},
		"nothing":                    {``, false},
		"a long string":              {`{"slot_id":"s","args":{"content":"` + strings.Repeat("x", 8<<20) + `"}}`, true},
		"many keys":                  {`{"slot_id":"s","args":{` + strings.Repeat(`"k":0,`, 200_000) + `"k":1}}`, true},
		"not UTF-8":                  {"{\"slot_id\":\"s\",\"tool\":\"\xff\"}", true},
	} {
		t.Run(name, func(t *testing.T) {
			var call Call
			err := json.Unmarshal([]byte(c.body), &call)
			assert.Equal(t, c.ok, err == nil, "%v", err)
			if c.ok {
				assert.Equal(t, "s", call.SlotID)
			}
		})
	}
}

func FuzzACallThatIsReadTravelsUnchanged(f *testing.F) {
	f.Add([]byte(`{"slot_id":"slot_0","tool":"bash","args":{"command":"true"},"timeout":30,"token":1}`))
	f.Add([]byte(`{"timeout":null,"args":null}`))
	f.Add([]byte(`{"timeout":"\u0000","args":[1e400]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var call Call
		if json.Unmarshal(body, &call) != nil {
			return
		}
		first, err := json.Marshal(call)
		require.NoError(t, err)
		var again Call
		require.NoError(t, json.Unmarshal(first, &again))
		second, err := json.Marshal(again)
		require.NoError(t, err)
		assert.Equal(t, string(first), string(second))
		d, err := call.Timeout.Duration(defaultTimeout, maxTimeout)
		if err == nil {
			assert.Positive(t, d)
			assert.LessOrEqual(t, d, maxTimeout)
		}
	})
}

func TestMetadataTravelsUnchanged(t *testing.T) {
	isolation := slots.NewIsolation(slots.Axes{slots.AxisFS: "mntns"})
	for name, m := range map[string]Metadata{
		"nothing": {},
		"a process that ran": {
			Receipt: &Receipt{
				Outcome: slots.OutcomeSignaled, ExitCode: 137, Signal: "SIGKILL", DurationMS: 1.5, SpawnMS: 0.25,
				CPUMS: 1, MaxRSSBytes: 1 << 40, OOMKilled: true, StdoutBytes: 1, StderrBytes: 2, Truncated: true, Leftover: 3,
			},
			QueueMS: 0.125, Isolation: &isolation, Generation: 9, Replayed: true,
			Details: map[string]any{"sandboxed": true, "shell": "sh", "nested": map[string]any{"a": []any{1.0, nil}}},
		},
		"a refusal":                   {ErrorKind: slots.KindFenced, Retryable: new(true), Executed: slots.ExecutedNever},
		"details where nothing ran":   {Details: map[string]any{"truncated": true, "exit_code": 3.0, "signal": "none"}},
		"a detail of another type":    {Details: map[string]any{"truncated": "by half", "stdout_bytes": []any{}}},
		"a detail in capital letters": {Details: map[string]any{"Outcome": "x", "QUEUE_MS": "y"}},
		"a detail that needs escapes": {Details: map[string]any{"<a & b>\n\"": "\u2028"}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(m)
			require.NoError(t, err)
			var back Metadata
			require.NoError(t, json.Unmarshal(text, &back))
			assert.Equal(t, m, back, "%s", text)
		})
	}
}

func TestDetailsNeverReplaceAFixedKey(t *testing.T) {
	details := map[string]any{}
	fixed := append(jsonKeys(reflect.TypeFor[Metadata]()), jsonKeys(reflect.TypeFor[Receipt]())...)
	for _, key := range append(fixed, "note") {
		details[key] = "forged"
	}
	text, err := json.Marshal(Metadata{Receipt: &Receipt{Outcome: slots.OutcomeExited}, Details: details})
	require.NoError(t, err)
	assert.JSONEq(t, `{"outcome":"exited","exit_code":0,"duration_ms":0,"spawn_ms":0,"cpu_ms":0,"max_rss_bytes":0,
		"oom_killed":false,"stdout_bytes":0,"stderr_bytes":0,"truncated":false,"queue_ms":0,"generation":0,"note":"forged"}`, string(text))
	assert.Len(t, details, 1+len(fixed), "the caller's map is not changed")

	text, err = json.Marshal(Metadata{Details: map[string]any{"queue_ms": "forged", "error_kind": "forged", "truncated": true}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"queue_ms":0,"generation":0,"truncated":true}`, string(text))
}

func TestAReceiptIsThereWhenThereIsAnOutcome(t *testing.T) {
	var m Metadata
	require.NoError(t, json.Unmarshal([]byte(`{"outcome":"exited","exit_code":3,"shell":"sh"}`), &m))
	assert.Equal(t, Metadata{
		Receipt: &Receipt{Outcome: slots.OutcomeExited, ExitCode: 3}, Details: map[string]any{"shell": "sh"},
	}, m)
	require.NoError(t, json.Unmarshal([]byte(`{"exit_code":-1,"timeout":true}`), &m), "as a reference server answers")
	assert.Equal(t, Metadata{Details: map[string]any{"exit_code": -1.0, "timeout": true}}, m)
}

func TestMetadataOfAnotherShapeIsRefused(t *testing.T) {
	var m Metadata
	for _, text := range []string{`[]`, `"x"`, `{"queue_ms":"x"}`, `{"outcome":5}`, `{"outcome":"exited","exit_code":"x"}`} {
		require.Error(t, json.Unmarshal([]byte(text), &m), text)
	}
	_, err := json.Marshal(Metadata{Details: map[string]any{"f": func() {}}})
	require.Error(t, err)
	_, err = json.Marshal(Metadata{QueueMS: math.NaN()})
	assert.Error(t, err)
}

// jsonKeys are the names of the struct's fields on the wire.
func jsonKeys(of reflect.Type) []string {
	var keys []string
	for field := range of.Fields() {
		if key, _, _ := strings.Cut(field.Tag.Get("json"), ","); key != "" && key != "-" {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestEveryKeyOfTheStructsHasItsField(t *testing.T) {
	m := &Metadata{Receipt: &Receipt{}}
	for _, of := range []any{m, m.Receipt} {
		v := reflect.ValueOf(of).Elem()
		for i := range v.NumField() {
			key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if key == "" || key == "-" {
				continue
			}
			assert.Equal(t, v.Field(i).Addr().Pointer(), reflect.ValueOf(m.field(key)).Pointer(), key)
		}
	}
	assert.Nil(t, m.field("Outcome"))
	assert.Nil(t, (&Metadata{}).field("outcome"))
}

func FuzzMetadataThatIsReadTravelsUnchanged(f *testing.F) {
	f.Add([]byte(`{"outcome":"exited","exit_code":0,"truncated":true,"shell":"sh"}`))
	f.Add([]byte(`{"truncated":"x","Outcome":1,"isolation":{"level":"ns","axes":null}}`))
	f.Add([]byte(`{"outcome":null,"retryable":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var m, again Metadata
		if json.Unmarshal(body, &m) != nil {
			return
		}
		text, err := json.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &again))
		assert.Equal(t, m, again)
	})
}

func TestAResultHasTheFiveKeysOfTheReference(t *testing.T) {
	text, err := json.Marshal(Result{})
	require.NoError(t, err)
	var keys map[string]any
	require.NoError(t, json.Unmarshal(text, &keys))
	assert.Len(t, keys, 5)
	for _, key := range []string{"success", "output", "error", "execution_id", "metadata"} {
		assert.Contains(t, keys, key)
	}
	first := 0
	text, err = json.Marshal(Result{Index: &first})
	require.NoError(t, err)
	assert.Contains(t, string(text), `"index":0`)
}

func TestRefusedSaysWhyAndWhetherToRetry(t *testing.T) {
	refused := Refused("x", slots.Errorf(slots.KindQueueTimeout, "the slot was busy"))
	text, err := json.Marshal(refused)
	require.NoError(t, err)
	assert.JSONEq(t, `{"success":false,"output":"","error":"the slot was busy","execution_id":"x","metadata":{
		"queue_ms":0,"generation":0,"error_kind":"queue_timeout","retryable":true,"executed":"never"}}`, string(text))
	assert.Equal(t, slots.KindInternal, Refused("x", assert.AnError).Metadata.ErrorKind)
	assert.Equal(t, slots.ExecutedMaybe, Refused("x", assert.AnError).Metadata.Executed)
}
