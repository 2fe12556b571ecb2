package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestEventsTravelWithTheirPayloadBesideTheName(t *testing.T) {
	chunk := NewChunk("stdout", 7, []byte("héllo\n"))
	raw := NewChunk("stderr", 0, []byte{0xff, 0, 'a'})
	result := Result{Success: true, Output: "ok", ExecutionID: "x", Metadata: Metadata{Receipt: &Receipt{Outcome: slots.OutcomeExited}}}
	for text, event := range map[string]Event{
		`{"event":"start","execution_id":"x"}`:                                {Name: EventStart, Start: &Start{ExecutionID: "x"}},
		`{"event":"chunk","stream":"stdout","offset":7,"data":"héllo\n"}`:     {Name: EventChunk, Chunk: &chunk},
		`{"event":"chunk","stream":"stderr","offset":0,"data_base64":"/wBh"}`: {Name: EventChunk, Chunk: &raw},
		`{"event":"gap","stream":"stdout","from":5,"to":9}`:                   {Name: EventGap, Gap: &Gap{Stream: "stdout", From: 5, To: 9}},
		`{"event":"ping"}`: {Name: EventPing},
		`{"event":"result","success":true,"output":"ok","error":"","execution_id":"x","metadata":{"outcome":"exited",
			"exit_code":0,"duration_ms":0,"spawn_ms":0,"cpu_ms":0,"max_rss_bytes":0,"oom_killed":false,"stdout_bytes":0,
			"stderr_bytes":0,"truncated":false,"queue_ms":0,"generation":0}}`: {Name: EventResult, Result: &result},
	} {
		got, err := json.Marshal(event)
		require.NoError(t, err)
		assert.JSONEq(t, text, string(got))
		var back Event
		require.NoError(t, json.Unmarshal(got, &back))
		assert.Equal(t, event, back)
	}
}

func TestAnEventWithoutPayloadHasAnEmptyOne(t *testing.T) {
	got, err := json.Marshal(Event{Name: EventStart})
	require.NoError(t, err)
	assert.JSONEq(t, `{"event":"start","execution_id":""}`, string(got))
}

func TestAnUnknownEventIsAnError(t *testing.T) {
	_, err := json.Marshal(Event{Name: "party"})
	require.ErrorContains(t, err, `unknown event "party"`)
	var e Event
	for _, text := range []string{`{"event":"party"}`, `{}`, `[]`, `{"event":"gap","from":"x"}`} {
		assert.Error(t, json.Unmarshal([]byte(text), &e), text)
	}
}

func TestF19AChunkGivesItsBytesBackWhateverTheyAre(t *testing.T) {
	for _, p := range []string{"", "text", "\x00\x1b[31m\u2028", "\xe2\x82", "\xff\xfe"} {
		in := []byte(p)
		chunk := NewChunk("stdout", 0, in)
		clear(in)
		text, err := json.Marshal(chunk)
		require.NoError(t, err)
		var back Chunk
		require.NoError(t, json.Unmarshal(text, &back))
		assert.Equal(t, p, string(back.Bytes()))
	}
}

func FuzzAnEventThatIsReadTravelsUnchanged(f *testing.F) {
	f.Add([]byte(`{"event":"chunk","stream":"stdout","offset":7,"data":"x"}`))
	f.Add([]byte(`{"event":"result","metadata":{"outcome":"exited"}}`))
	f.Add([]byte(`{"event":"ping","x":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var e, again Event
		if json.Unmarshal(body, &e) != nil {
			return
		}
		first, err := json.Marshal(e)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(first, &again))
		second, err := json.Marshal(again)
		require.NoError(t, err)
		assert.Equal(t, string(first), string(second))
	})
}
