package nomad_test

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAWriteThatWasHeardOfMeanwhileIsNotOverwritten(t *testing.T) {
	d := newDouble(t)
	first, second := open(t, d.named(t, "first")), open(t, d.named(t, "second"))
	path := "nomad/jobs/" + job + "/containers/-"
	_, write := first.Draft("t", path)
	_, other := second.Draft("t", path)
	written, err := other(t.Context(), "a", "1")
	require.NoError(t, err)
	require.True(t, written)
	require.Eventually(t, func() bool {
		known, _ := first.Draft("t", path)
		return known["a"] == "1"
	}, patience, time.Millisecond)
	written, err = write(t.Context(), "b", "2")
	require.NoError(t, err)
	assert.False(t, written, "it was drafted before")
	known, write := first.Draft("t", path)
	assert.Equal(t, map[string]string{"a": "1"}, known)
	written, err = write(t.Context(), "b", "2")
	require.NoError(t, err)
	assert.True(t, written)
	d.do(func() { assert.Equal(t, api.VariableItems{"a": "1", "b": "2"}, d.variables[path].Items) })
}
