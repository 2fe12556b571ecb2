package nomadtest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/orchestrator/poolapi"
)

func TestBerthEmptiesAMachineAndWaitsForItsLeases(t *testing.T) {
	t.Parallel()
	a := nomadtest.Start(t, nomadtest.Config{})
	b := nomadtest.Start(t, nomadtest.Config{Servers: []string{a.RPC}})
	o := serve(t, a.URL, "--containers", "2", "--max-containers", "2", "--slots", "2")
	o.settled(t, 2)
	there := ""
	for _, one := range allocations(t, a) {
		if one.NodeID == b.NodeID() {
			there = containerOf(t, a, one.ID)
		}
	}
	require.NotEmpty(t, there, "they are spread")
	var held poolapi.Lease
	for i := range 4 {
		lease, err := o.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: fmt.Sprint(i), TTLSeconds: 600, WaitS: 60})
		require.NoError(t, err)
		if lease.Container == there {
			held = lease
			break
		}
	}
	require.Equal(t, there, held.Container)

	cmd := exec.CommandContext(t.Context(), program(t, "berth"), "nomad", "drain", "--node", b.Name, "--within", "5m")
	cmd.Env = append(a.Command().Env, "BERTH_URL="+o.url)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // waited for below
	require.Eventually(t, func() bool {
		node, _, err := a.Client.Nodes().Info(b.NodeID(), nil)
		return err == nil && node.SchedulingEligibility == api.NodeSchedulingIneligible
	}, patience, 50*time.Millisecond)
	select {
	case err := <-ended:
		require.Fail(t, "it did not wait for the lease", "%v %s %s", err, &out, &said)
	case <-time.After(2 * time.Second):
	}
	result, err := o.Execute(t.Context(), held.ID, poolapi.Call{Tool: "bash", Args: []byte(`{"command": "echo still here"}`)})
	require.NoError(t, err)
	assert.Equal(t, "still here", result.Output)
	_, err = o.Release(t.Context(), held.ID)
	require.NoError(t, err)
	select {
	case err := <-ended:
		require.NoError(t, err, "%s %s", &out, &said)
	case <-time.After(patience):
		require.Fail(t, "it does not end", "%s %s", &out, &said)
	}
	t.Logf("%s", &said)
	var told struct {
		Containers []string
		Node       string
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &told), "%s", &out)
	assert.Equal(t, []string{there}, told.Containers)
	assert.Equal(t, b.NodeID(), told.Node)
	o.settled(t, 2, there)
	for _, one := range allocations(t, a) {
		assert.Equal(t, a.NodeID(), one.NodeID)
	}
}
