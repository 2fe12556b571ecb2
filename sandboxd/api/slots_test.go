package api

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestAResetAnswerHasTheFiveKeysAndTheReceipt(t *testing.T) {
	t.Parallel()
	clean := NewResetAnswer("slot_3", slots.Receipt{Clean: true, Generation: 4, MS: 1.5}, nil)
	text, err := json.Marshal(clean)
	require.NoError(t, err)
	assert.JSONEq(t, `{"success":true,"output":"Reset workspace for slot_3","error":"","execution_id":"",
		"metadata":{"clean":true,"generation":4,"checks":[],"ms":1.5}}`, string(text))
	require.NoError(t, clean.Err())

	failed := NewResetAnswer("slot_3", slots.Receipt{}, slots.Errorf(slots.KindResetFailed, "files left"))
	text, err = json.Marshal(failed)
	require.NoError(t, err)
	assert.JSONEq(t, `{"success":false,"output":"","error":"files left","execution_id":"",
		"metadata":{"clean":false,"generation":0,"checks":[],"ms":0,"error_kind":"reset_failed","retryable":false,"executed":"never"}}`, string(text))
	assert.Equal(t, slots.KindResetFailed, slots.AsError(failed.Err()).Kind)
}

func TestAnErrorAnswerCarriesTheErrorThereAndBack(t *testing.T) {
	t.Parallel()
	want := slots.Errorf(slots.KindPoolExhausted, "no slot is free")
	text, err := json.Marshal(NewErrorAnswer(want))
	require.NoError(t, err)
	assert.JSONEq(t, `{"error":{"kind":"pool_exhausted","message":"no slot is free","retryable":true,"executed":"never"}}`, string(text))
	var back ErrorAnswer
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, want, back.Err())
	assert.Equal(t, slots.KindInternal, NewErrorAnswer(errors.New("x")).Error.Kind)
}

func TestASlotWithoutWorkShowsANullExecution(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Slot{SlotID: "slot_0", State: slots.StateAvailable, WorkspaceDir: "/workspace"})
	require.NoError(t, err)
	assert.JSONEq(t, `{"slot_id":"slot_0","state":"available","workspace_dir":"/workspace",
		"current_execution_id":null,"generation":0,"queued":0}`, string(text))
}
