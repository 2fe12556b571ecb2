package slots

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryKindHasItsStatusAndWhatItSaysAboutRetries(t *testing.T) {
	want := map[Kind]rule{
		"slot_lost":             {503, false, "maybe"},
		"container_unreachable": {503, true, "maybe"},
		"lease_expired":         {409, false, "never"},
		"fenced":                {409, false, "never"},
		"queue_timeout":         {503, true, "never"},
		"pool_exhausted":        {429, true, "never"},
		"reset_failed":          {503, false, "never"},
		"interrupted":           {503, false, "maybe"},
		"bad_request":           {400, false, "never"},
		"unauthorized":          {401, false, "never"},
		"internal":              {500, false, "maybe"},
		"not_found":             {404, false, "never"},
		"conflict":              {409, false, "never"},
		"too_large":             {413, false, "never"},
		"denied":                {403, false, "never"},
		"draining":              {503, true, "never"},
		"isolation_unavailable": {503, false, "never"},
		"slot_exhausted":        {503, true, "never"},
	}
	kinds := Kinds()
	assert.Len(t, kinds, len(want))
	for kind, r := range want {
		assert.True(t, slices.Contains(kinds, kind), kind)
		assert.Equal(t, r.status, kind.Status(), kind)
		err := Errorf(kind, "x")
		assert.Equal(t, r.retryable, err.Retryable, kind)
		assert.Equal(t, r.executed, err.Executed, kind)
	}
}

func TestAnUnknownKindIsAFaultOfTheServer(t *testing.T) {
	assert.Equal(t, 500, Kind("no such kind").Status())
	assert.False(t, Errorf("no such kind", "x").Retryable)
}

func TestErrorfKeepsTheCauseAndTheSentence(t *testing.T) {
	err := Errorf(KindConflict, "slot %d: %w", 3, io.ErrUnexpectedEOF)
	require.EqualError(t, err, "slot 3: unexpected EOF")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.NoError(t, errors.Unwrap(Errorf(KindConflict, "no cause")))
}

func TestWithExecutedChangesACopy(t *testing.T) {
	err := Errorf(KindInternal, "x: %w", io.EOF)
	never := err.WithExecuted(ExecutedNever)
	assert.Equal(t, ExecutedNever, never.Executed)
	assert.Equal(t, ExecutedMaybe, err.Executed)
	assert.Equal(t, err.Kind, never.Kind)
	assert.ErrorIs(t, never, io.EOF)
}

func TestAsErrorFindsTheErrorInsideOrMakesAnInternalOne(t *testing.T) {
	assert.Nil(t, AsError(nil))
	inner := Errorf(KindFenced, "token 3 does not hold slot_0")
	assert.Same(t, inner, AsError(inner))
	assert.Same(t, inner, AsError(fmt.Errorf("call slot: %w", inner)))
	other := AsError(io.EOF)
	require.NotNil(t, other)
	assert.Equal(t, KindInternal, other.Kind)
	assert.Equal(t, ExecutedMaybe, other.Executed)
	require.ErrorIs(t, other, io.EOF)
	assert.EqualError(t, other, "EOF")
}
