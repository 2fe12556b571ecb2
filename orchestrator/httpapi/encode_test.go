package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/calls"
	"berth/orchestrator/dispatch"
	"berth/sandboxd/api"
	"berth/slots"
)

// results are what containers may answer, of which parts look like others.
func results() []api.Result {
	index := 7
	look := `","execution_id":"","metadata":{}},"timing_ms":1}}`
	return []api.Result{
		{},
		{Success: true, Output: look, Error: look, ExecutionID: look, Index: &index, Metadata: api.Metadata{
			Receipt: &api.Receipt{Outcome: slots.OutcomeExited, Signal: look}, Details: map[string]any{look: look, "z": map[string]any{"z": look}},
		}},
		api.Refused("id", slots.Errorf(slots.KindFenced, "no")),
		{Metadata: api.Metadata{Details: map[string]any{keyTiming: "a tool's own"}}},
		{Output: "\xff\\\"", ExecutionID: "\\"},
	}
}

func TestATimingIsPartOfTheMetadataAndAllElseStays(t *testing.T) {
	took := newTiming(calls.Answer{Acquire: time.Second, Answer: dispatch.Answer{Timing: dispatch.Timing{
		Queue: 1234 * time.Microsecond, Dispatch: 2 * time.Millisecond, Spawn: time.Nanosecond, Run: time.Hour, Transfer: 5 * time.Microsecond,
	}}})
	for _, r := range results() {
		var want, got map[string]any
		text, err := json.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &want))
		want["metadata"].(map[string]any)[keyTiming] = map[string]any{
			"queue": 1.234, "acquire": 1000.0, "dispatch": 2.0, "spawn": 0.0, "run": 3.6e6, "transfer": 0.005,
		}
		text, err = r.Encode()
		require.NoError(t, err)
		unread, err := api.PeekResult(text)
		require.NoError(t, err)
		text, err = timed(r, took)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &got), "%s", text)
		assert.Equal(t, want, got)

		text, err = timed(unread, took)
		require.NoError(t, err)
		got = nil
		require.NoError(t, json.Unmarshal(text, &got), "%s", text)
		assert.Equal(t, want, got)
		assert.Equal(t, 1, strings.Count(string(text), `"timing_ms":`), "a tool's own is not passed on")
	}
	_, err := timed(api.Result{Metadata: api.Metadata{Details: map[string]any{"x": func() {}}}}, took)
	assert.Error(t, err)
}

func TestACallsAnswerHasTheFiveKeysOfTheReference(t *testing.T) {
	id := `u","metadata":{}`
	for _, uniqID := range []*string{nil, &id} {
		for _, r := range results() {
			r.Index = nil
			var want, got map[string]any
			text, err := timed(r, timing{})
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &want))
			delete(want, "execution_id")
			want["uniq_id"] = nil
			if uniqID != nil {
				want["uniq_id"] = id
			}
			text, err = callAnswer(text, uniqID)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &got), "%s", text)
			assert.Equal(t, want, got)
			assert.Len(t, got, 5)
		}
	}
}
