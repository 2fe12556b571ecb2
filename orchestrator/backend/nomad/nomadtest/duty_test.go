package nomadtest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad/nomadtest"
)

func TestTheDutyIsGivenBackAtAnOrderlyEnd(t *testing.T) {
	t.Parallel()
	const scales = "this orchestrator scales the job"
	a := nomadtest.Start(t, nomadtest.Config{})
	size := []string{"--containers", "1", "--slots", "1"}
	first := serve(t, a.URL, size...)
	first.settled(t, 1)
	second := serve(t, a.URL, size...)
	second.settled(t, 1)
	require.Zero(t, second.said(t, scales))
	first.end(t)
	began := time.Now()
	second.await(t, "the duty", func() bool { return second.said(t, scales) > 0 })
	assert.Less(t, time.Since(began), 15*time.Second, "half of what a lock lasts that is not given back")
}
