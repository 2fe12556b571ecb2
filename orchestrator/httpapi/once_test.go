package httpapi

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestKeptAnswersAreBounded(t *testing.T) {
	a := answers{byKey: map[string]*kept{}}
	keep := func(name string, size int) *kept {
		k, mine, err := a.begin(name, [32]byte{})
		require.NoError(t, err)
		require.True(t, mine)
		_, err = k.Write(make([]byte, size))
		require.NoError(t, err)
		a.end(k, true)
		return k
	}
	for n := range keptAnswers + 10 {
		keep(fmt.Sprint(n), 1)
	}
	assert.Len(t, a.byKey, keptAnswers)
	assert.Equal(t, keptAnswers, a.bytes)
	assert.NotContains(t, a.byKey, "9")
	assert.Contains(t, a.byKey, "10")
	huge := keep("huge", keptBytes+1)
	huge.status = http.StatusOK
	assert.Equal(t, keptAnswers-1, a.bytes, "it costs none of the others its place")
	again, mine, err := a.begin("huge", [32]byte{})
	require.NoError(t, err)
	require.False(t, mine, "it is not done twice")
	_, err = a.body(again)
	require.ErrorContains(t, err, "answered with status 200, and its answer of 16777217 bytes is not kept any more")
	assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind)
	assert.Equal(t, slots.ExecutedYes, slots.AsError(err).Executed)
	huge.status = http.StatusInternalServerError
	_, err = a.body(again)
	assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
	lease := keep("lease", 2)
	lease.found = true
	for n := range keptBytes / keptBody {
		keep(fmt.Sprint("large ", n), keptBody)
	}
	assert.Len(t, a.byKey, keptAnswers-1, "what was answered is known")
	assert.Equal(t, keptBytes, a.bytes)
	assert.NotContains(t, a.byKey, "lease", "who asks for it again gets the lease that bears the key")
	small := keep("small", 3)
	body, err := a.body(small)
	require.NoError(t, err)
	assert.Len(t, body, 3)

	past := time.Now().Add(-keptFor)
	for e := a.order.Front(); e != nil; e = e.Next() {
		e.Value.(*kept).at = past
	}
	_, mine, err = a.begin("large 1", [32]byte{1})
	require.NoError(t, err, "what is forgotten is no conflict")
	assert.True(t, mine)
	assert.Zero(t, a.bytes)
	assert.Zero(t, a.order.Len())
	assert.Zero(t, a.whole.Len())
}

func TestWhatCameToNothingIsAskedAgain(t *testing.T) {
	a := answers{byKey: map[string]*kept{}}
	k, mine, err := a.begin("k", [32]byte{})
	require.NoError(t, err)
	require.True(t, mine)
	same, mine, err := a.begin("k", [32]byte{})
	require.NoError(t, err)
	assert.False(t, mine)
	assert.Same(t, k, same)
	_, _, err = a.begin("k", [32]byte{1})
	assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind)
	a.end(k, false)
	<-same.done
	assert.False(t, same.final)
	assert.Empty(t, a.byKey)
}

func TestKeysAreOnePrintableText(t *testing.T) {
	for _, values := range [][]string{{""}, {"a", "b"}, {"a b"}, {"a\x00"}, {"é"}} {
		_, err := keyOf(&http.Request{Header: http.Header{headerKey: values}})
		require.Error(t, err, "%q", values)
	}
	key, err := keyOf(&http.Request{Header: http.Header{headerKey: {"a-1"}}})
	require.NoError(t, err)
	assert.Equal(t, "a-1", key)
}
