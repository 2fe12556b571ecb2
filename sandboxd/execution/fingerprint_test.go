package execution

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
)

func callWith(args string) api.Call {
	return api.Call{SlotID: "slot_0", Tool: "bash", Args: json.RawMessage(args), Timeout: api.Seconds(30)}
}

func TestFingerprintIsTheSameForTheSameContent(t *testing.T) {
	for name, pair := range map[string][2]string{
		"key order":               {`{"a":1,"b":{"c":2,"d":3}}`, `{"b":{"d":3,"c":2},"a":1}`},
		"white space":             {`{"a":[1,2]}`, "\n{ \"a\" : [ 1,\t2 ] } "},
		"escapes":                 {`{"a":"é/\n"}`, `{"\u0061":"\u00e9\/\u000a"}`},
		"the last duplicate wins": {`{"a":1,"a":2}`, `{"a":2}`},
		"duplicates deep inside":  {`{"x":[{"a":1,"b":0,"a":2}]}`, `{"x":[{"b":0,"a":2}]}`},
		"absent and empty":        {``, `{}`},
		"null and empty":          {`null`, ` {} `},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, Fingerprint(callWith(pair[0])), Fingerprint(callWith(pair[1])))
		})
	}
}

func TestFingerprintDiffersForOtherContent(t *testing.T) {
	seen := map[[32]byte]string{}
	add := func(name string, call api.Call) {
		sum := Fingerprint(call)
		assert.Empty(t, seen[sum], "%s is as %s", name, seen[sum])
		seen[sum] = name
	}
	for _, args := range []string{
		`{}`, `{"a":1}`, `{"a":1.0}`, `{"a":10e-1}`, `{"a":"1"}`, `{"a":true}`, `{"a":false}`, `{"a":null}`, `{"a":[1]}`,
		`{"a":12345678901234567890}`, `{"a":12345678901234567891}`, `{"a":1e400}`, `{"a":1e401}`, `{"a":-0}`, `{"a":0}`,
		`{"a":[]}`, `{"a":{}}`, `{"a":""}`, `{"a":[[],[]]}`, `{"a":[[[]]]}`, `{"ab":""}`, `{"a":"b"}`, `{"a":{"b":{}}}`,
		`[]`, `"text"`, `5`, `{"a":1}{"a":1}`, `{"a":1} x`, `{"a":`, `[1,2]`, `[[1],2]`, `[1,[2]]`,
		strings.Repeat("[", 100_000), strings.Repeat("[", 100_001), strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999),
	} {
		add("args "+args[:min(40, len(args))], callWith(args))
	}
	call := callWith(`{}`)
	call.SlotID = "slot_1"
	add("other slot", call)
	call = callWith(`{}`)
	call.Tool = "read_file"
	add("other tool", call)
	call.SlotID, call.Tool = "slot_0r", "ead_file"
	add("letters moved from tool to slot", call)
	for _, timeout := range []string{`{}`, `{"timeout":31}`, `{"timeout":30.0}`, `{"timeout":"30"}`} {
		call = callWith(`{}`)
		call.Timeout = api.Timeout{}
		require.NoError(t, json.Unmarshal([]byte(timeout), &call))
		add("timeout "+timeout, call)
	}
	call = callWith(`{}`)
	for _, token := range []uint64{0, 1, 2} {
		call.Token = &token
		add("token", call)
	}
}

func TestFingerprintIgnoresWhatDoesNotDecide(t *testing.T) {
	call := callWith(`{}`)
	call.ExecutionID = "one"
	other := callWith(`{}`)
	other.ExecutionID = "two"
	assert.Equal(t, Fingerprint(call), Fingerprint(other))

	var absent, null api.Call
	require.NoError(t, json.Unmarshal([]byte(`{"slot_id":"s"}`), &absent))
	require.NoError(t, json.Unmarshal([]byte(`{"slot_id":"s","timeout":null}`), &null))
	assert.Equal(t, Fingerprint(absent), Fingerprint(null))
}

func TestF17FingerprintOfAMillionKeysAndOfDeepNestingEnds(t *testing.T) {
	var b strings.Builder
	b.WriteByte('{')
	for range 300_000 {
		b.WriteString(`"k":0,`)
	}
	b.WriteString(`"k":1}`)
	assert.Equal(t, Fingerprint(callWith(`{"k":1}`)), Fingerprint(callWith(b.String())))
	deep := strings.Repeat(`{"a":`, 5_000) + "1" + strings.Repeat("}", 5_000)
	assert.NotEqual(t, Fingerprint(callWith(deep)), Fingerprint(callWith(`{"a":1}`)))
}

func FuzzFingerprintDependsOnTheValueAlone(f *testing.F) {
	f.Add(`{"b":[1,2.50,{"c":"é"}],"a":null}`)
	f.Add(`{"a":1e400,"a":"\ud800"}`)
	f.Add(`[[[`)
	f.Fuzz(func(t *testing.T, args string) {
		sum := Fingerprint(callWith(args))
		assert.Equal(t, sum, Fingerprint(callWith(args)))
		decoder := json.NewDecoder(strings.NewReader(args))
		decoder.UseNumber()
		var v any
		if decoder.Decode(&v) != nil || decoder.More() || v == nil {
			return
		}
		// Encoding sorts keys, drops duplicates and escapes anew.
		rewritten, err := json.MarshalIndent(v, " ", "\t")
		require.NoError(t, err)
		if strings.TrimSpace(args[decoder.InputOffset():]) == "" {
			assert.Equal(t, sum, Fingerprint(callWith(string(rewritten))))
		}
	})
}
