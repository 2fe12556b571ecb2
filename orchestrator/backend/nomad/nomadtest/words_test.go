package nomadtest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/orchestrator/poolapi"
	"berth/slots"
)

// hears acquires until the refusal has the words.
func (o *orchestrator) hears(t *testing.T, words ...string) {
	t.Helper()
	o.await(t, "the words in the error of an acquire", func() bool {
		_, err := o.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: "waits", WaitS: 5})
		require.Error(t, err)
		require.Equal(t, slots.KindPoolExhausted, slots.AsError(err).Kind, "%v", err)
		t.Log(err)
		for _, one := range words {
			if !strings.Contains(err.Error(), one) {
				return false
			}
		}
		return true
	})
}

func TestWhoWaitsHearsWhatNomadSays(t *testing.T) {
	t.Parallel()
	a := nomadtest.Start(t, nomadtest.Config{})
	large := []string{"--containers", "0", "--max-containers", "1", "--slots", "1", "--template", "large", "--nomad-memory", "9999999"}
	first := serve(t, a.URL, large...)
	first.await(t, "the duty", func() bool {
		pools, err := first.Pools(t.Context())
		return err == nil && pools[0].Scales
	})
	other := serve(t, a.URL, large...)
	const room = `Dimension "memory" exhausted on 1 nodes`
	first.hears(t, "the last container did not start", room)
	other.hears(t, "another orchestrator (", "starts its containers, and there is trouble", room)

	broken := serve(t, a.URL, "--containers", "0", "--max-containers", "1", "--slots", "1", "--template", "broken", "--sandboxd", "/no/such/program")
	broken.hears(t, "the last container did not start", "/no/such/program")
	pools, err := broken.Pools(t.Context())
	require.NoError(t, err)
	require.NotNil(t, pools[0].Trouble)
	assert.Contains(t, pools[0].Trouble.Words, "/no/such/program")
	assert.Positive(t, pools[0].Trouble.FailedStarts)
}
