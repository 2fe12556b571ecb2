package nomadtest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad/nomadtest"
)

func TestAnAgentRunsAndIsFoundAgain(t *testing.T) {
	t.Parallel()
	a := nomadtest.Start(t, nomadtest.Config{})
	id := a.NodeID()
	a.Kill()
	_, err := a.Client.Status().Leader()
	require.Error(t, err)
	a.Run()
	a.Wait()
	assert.Equal(t, id, a.NodeID())
	node, _, err := a.Client.Nodes().Info(id, nil)
	require.NoError(t, err)
	for name, driver := range node.Drivers {
		t.Log(name, driver.Detected, driver.Healthy, driver.HealthDescription)
	}
}
