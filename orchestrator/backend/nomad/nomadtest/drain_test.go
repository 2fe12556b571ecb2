package nomadtest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
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

	drain := func(out, said *bytes.Buffer) (cmd *exec.Cmd, ended chan error) {
		cmd = exec.CommandContext(t.Context(), program(t, "berth"), "nomad", "drain", "--node", b.Name, "--within", "5m")
		cmd.Env = a.Command().Env
		cmd.Stdout, cmd.Stderr = out, said
		require.NoError(t, cmd.Start())
		ended = make(chan error, 1)
		go func() { ended <- cmd.Wait() }() // waited for below
		require.Eventually(t, func() bool {
			node, _, err := a.Client.Nodes().Info(b.NodeID(), nil)
			return err == nil && node.SchedulingEligibility == api.NodeSchedulingIneligible
		}, patience, 50*time.Millisecond)
		return cmd, ended
	}

	// One that is interrupted goes on, and says how it is taken back.
	var out, said bytes.Buffer
	cmd, ended := drain(&out, &said)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	select {
	case <-ended:
	case <-time.After(patience):
		require.Fail(t, "it does not end", "%s %s", &out, &said)
	}
	assert.Equal(t, 130, cmd.ProcessState.ExitCode(), "%s", &said)
	_, mend, found := strings.Cut(said.String(), "to have work come again: ")
	require.True(t, found, "%s", &said)
	words := strings.Fields(mend)
	require.Equal(t, "nomad", words[0])
	text, err := a.Command(words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", mend, text)
	node, _, err := a.Client.Nodes().Info(b.NodeID(), nil)
	require.NoError(t, err)
	assert.Equal(t, api.NodeSchedulingEligible, node.SchedulingEligibility, "work comes again")

	out.Reset()
	said.Reset()
	_, ended = drain(&out, &said)
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
	assert.Contains(t, told.Containers, there, "what was told to leave does, but not before its leases end")
	assert.Equal(t, b.NodeID(), told.Node)
	o.settled(t, 2, there)
	for _, one := range allocations(t, a) {
		assert.Equal(t, a.NodeID(), one.NodeID)
	}
}
