package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

// travel encodes from and decodes it into to.
func travel(t *testing.T, from, to any) string {
	t.Helper()
	text, err := json.Marshal(from)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, to))
	return string(text)
}

func TestEveryErrorSurvivesEveryEnvelope(t *testing.T) {
	for _, kind := range slots.Kinds() {
		for _, executed := range []slots.Executed{slots.ExecutedNever, slots.ExecutedMaybe, slots.ExecutedYes} {
			want := slots.Errorf(kind, "what happened").WithExecuted(executed)

			var failure ArtifactFailure
			travel(t, NewArtifactFailure(want), &failure)
			assert.Equal(t, want, failure.Err())
			assert.False(t, failure.Success)

			var answer ErrorAnswer
			travel(t, NewErrorAnswer(want), &answer)
			assert.Equal(t, want, answer.Err())

			var result Result
			travel(t, Refused("x", want), &result)
			assert.Equal(t, error(want), result.Err())

			var reset ResetAnswer
			travel(t, NewResetAnswer("slot_0", slots.Receipt{}, want), &reset)
			assert.Equal(t, error(want), reset.Err())
		}
	}
}

func TestACommandThatFailedIsNoError(t *testing.T) {
	failed := Result{Error: "Exit code: 1", Metadata: Metadata{Receipt: &Receipt{Outcome: slots.OutcomeExited, ExitCode: 1}}}
	assert.NoError(t, failed.Err())
	assert.NoError(t, ResetAnswer{}.Err())
}

func TestErrorsOfV1HaveOneEnvelope(t *testing.T) {
	var back ErrorAnswer
	text := travel(t, NewErrorAnswer(slots.Errorf(slots.KindFenced, "token 3 does not hold slot slot_0")), &back)
	assert.JSONEq(t, `{"error":{"kind":"fenced","message":"token 3 does not hold slot slot_0","retryable":false,"executed":"never"}}`, text)
	assert.Equal(t, slots.KindInternal, NewErrorAnswer(assert.AnError).Error.Kind)
}

func TestAResetAnswersTheFiveKeysAndTheReceipt(t *testing.T) {
	var back ResetAnswer
	text := travel(t, NewResetAnswer("slot_3", slots.Receipt{Clean: true, Generation: 4, MS: 1.5}, nil), &back)
	assert.JSONEq(t, `{"success":true,"output":"Reset workspace for slot_3","error":"","execution_id":"",
		"metadata":{"clean":true,"generation":4,"checks":[],"ms":1.5}}`, text)

	dirty := slots.Receipt{Generation: 4, Checks: []slots.Check{{Name: "processes", Note: "1 left"}}}
	text = travel(t, NewResetAnswer("slot_3", dirty, slots.Errorf(slots.KindResetFailed, "slot is not clean")), &back)
	assert.JSONEq(t, `{"success":false,"output":"","error":"slot is not clean","execution_id":"","metadata":{"clean":false,
		"generation":4,"checks":[{"name":"processes","ok":false,"note":"1 left"}],"ms":0,
		"error_kind":"reset_failed","retryable":false,"executed":"never"}}`, text)
}

func TestASlotShowsItsLeaseAndNullWhereNothingRuns(t *testing.T) {
	var back Slot
	text := travel(t, Slot{SlotID: "slot_0", State: slots.StateAvailable, WorkspaceDir: "/workspace"}, &back)
	assert.JSONEq(t, `{"slot_id":"slot_0","state":"available","workspace_dir":"/workspace","current_execution_id":null,
		"generation":0,"queued":0}`, text)
}
