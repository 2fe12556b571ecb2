package main

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const machineID = "11112222-0"

// machineAnswers are those of a Nomad that has one machine with two containers;
// drain is that to a drain.
func machineAnswers(drain any) map[string]any {
	alloc := func(id string) object {
		return object{"ID": id, "JobID": "berth-default", "NodeID": machineID, "ClientStatus": "running", "DesiredStatus": "run"}
	}
	return map[string]any{
		"GET nodes":                        []any{object{"ID": machineID, "Name": "one"}},
		"GET allocations":                  []any{alloc("aaaa"), alloc("bbbb")},
		"GET vars":                         []any{object{"Path": "v"}},
		"GET var/v":                        object{"Items": object{"aaaa": "default-1", "bbbb": "default-2"}},
		"PUT node/" + machineID + "/drain": drain,
	}
}

var accepted = object{"NodeModifyIndex": 7}

func TestNomadDrainThatNomadRefusesIsNone(t *testing.T) {
	nomadDouble(t, machineAnswers(http.StatusForbidden))
	status, out, errs := runMain(t.Context(), "nomad", "drain", "--node", "one")
	assert.NotZero(t, status)
	assert.Empty(t, out)
	assert.Contains(t, errs, "as it was told")
	assert.NotContains(t, errs, "goes on")
}

func TestNomadDrainOfAMachineAsksNoOrchestrator(t *testing.T) {
	asked := nomadDouble(t, machineAnswers(accepted))
	status, _, errs := runMain(t.Context(), "nomad", "drain", "--node", "one", "--force")
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, errs, "--force")
	assert.Empty(t, asked())
}

func TestNomadDrainThatIsInterruptedLaterSaysWhatGoesOn(t *testing.T) {
	const drain, node = "PUT node/" + machineID + "/drain", "GET node/" + machineID
	for _, name := range []string{drain, node} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			answers := machineAnswers(accepted)
			answers[node] = object{"ID": machineID, "DrainStrategy": object{}}
			answers[name] = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				cancel()
				<-t.Context().Done() // as a blocking query does, and an answer that is lost
			})
			answers[node+"/allocations"] = answers["GET allocations"]
			nomadDouble(t, answers)
			status, out, errs := runMain(ctx, "nomad", "drain", "--node", "one")
			assert.Equal(t, exitInterrupted, status, errs)
			assert.Empty(t, out)
			assert.Contains(t, errs, "it goes on all the same; to have work come again: "+
				"nomad node drain -disable "+machineID)
		})
	}
}

func TestNomadDrainThatSomebodyTakesBackIsNone(t *testing.T) {
	answers := machineAnswers(accepted)
	answers["GET node/"+machineID] = object{"ID": machineID, "LastDrain": object{"Status": "canceled"}}
	answers["GET node/"+machineID+"/allocations"] = []any{object{"ID": "aaaa", "ClientStatus": "running", "Job": object{"Type": "service"}}}
	nomadDouble(t, answers)
	status, _, errs := runMain(t.Context(), "nomad", "drain", "--node", "one")
	assert.Equal(t, exitFailed, status, errs)
	assert.Contains(t, errs, "somebody has taken the drain back")
}

func TestNomadDrainThatLosesNomadSaysWhatGoesOn(t *testing.T) {
	answers := machineAnswers(accepted)
	answers["GET node/"+machineID] = http.StatusBadGateway
	nomadDouble(t, answers)
	status, _, errs := runMain(t.Context(), "nomad", "drain", "--node", "one", "--within", "1s")
	require.Equal(t, exitFailed, status, errs)
	assert.Contains(t, errs, "nomad node drain -disable")
}

func TestNomadDrainOfAContainerThatIsInterruptedSaysWhatGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := machineAnswers(accepted)
	answers["GET vars"] = []any{} // no orchestrator has claimed it
	answers["PUT allocation/aaaa/stop"] = object{}
	answers["GET allocation/aaaa"] = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel()
		<-t.Context().Done()
	})
	nomadDouble(t, answers)
	status, out, errs := runMain(ctx, "nomad", "drain", "aaaa")
	assert.Equal(t, exitInterrupted, status, errs)
	assert.Empty(t, out)
	assert.Contains(t, errs, "it goes on all the same, and nothing takes it back")
	assert.NotContains(t, errs, "http://")
}
