package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAFunctionsResultKeepsEveryDigit(t *testing.T) {
	const digits = "123456789012345678901234567890.10000000000000000001"
	function, err := json.Marshal(FunctionResult{Status: FunctionSuccess, FuncReturn: json.RawMessage("[\n " + digits + "]")})
	require.NoError(t, err)
	text, err := Result{ExecutionID: "x", Function: function, Metadata: Metadata{Generation: 1}}.Encode()
	require.NoError(t, err)
	assert.NotContains(t, string(text), "\n", "a result is one line of a stream")
	for name, read := range map[string]func([]byte) (Result, error){"in full": DecodeResult, "passed on": PeekResult} {
		r, err := read(text)
		require.NoError(t, err, name)
		f, err := r.FunctionResult()
		require.NoError(t, err, name)
		assert.Equal(t, "["+digits+"]", string(f.FuncReturn), name)
		again, err := r.Encode()
		require.NoError(t, err, name)
		assert.Equal(t, string(text), string(again), name)
	}
}

func TestAResultWithoutAFunctionSaysSo(t *testing.T) {
	f, err := Result{}.FunctionResult()
	require.NoError(t, err)
	assert.Nil(t, f)
	_, err = Result{Function: json.RawMessage(`[]`)}.FunctionResult()
	require.Error(t, err)
}
