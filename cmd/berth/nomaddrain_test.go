package main

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
)

// cordonDouble is an orchestrator of which containers can be cordoned. after is
// called with each cordon that was done, and says how it is answered; 0: well.
type cordonDouble struct {
	mu     sync.Mutex        // guards what follows
	states map[string]string // of containers
	after  func(id string, on bool) (status int)
}

func newCordonDouble(t *testing.T, containers ...string) *cordonDouble {
	t.Helper()
	d := &cordonDouble{states: map[string]string{}}
	for _, id := range containers {
		d.states[id] = "ready"
	}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	t.Setenv("BERTH_URL", server.URL)
	return d
}

// ServeHTTP answers as an orchestrator does.
func (d *cordonDouble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.URL.Path == "/v1/containers" {
		all := poolapi.Containers{}
		for id, state := range d.states {
			all.Containers = append(all.Containers, poolapi.Container{ID: id, State: state})
		}
		_ = json.NewEncoder(w).Encode(all) // whoever asked may have left
		return
	}
	id, found := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/containers/"), "/cordon")
	var want poolapi.Cordon
	if err := json.NewDecoder(r.Body).Decode(&want); err != nil || !found || d.states[id] == "" {
		http.Error(w, `{"detail": "no such container", "error_kind": "not_found"}`, http.StatusNotFound)
		return
	}
	d.states[id] = "ready"
	if *want.On {
		d.states[id] = "cordoned"
	}
	if d.after != nil {
		if status := d.after(id, *want.On); status != 0 {
			http.Error(w, "no", status)
			return
		}
	}
	_ = json.NewEncoder(w).Encode(poolapi.Container{ID: id, State: d.states[id]})
}

// are the states of the containers now.
func (d *cordonDouble) are() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.states)
}

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

var (
	asItWas  = map[string]string{"default-1": "ready", "default-2": "ready"}
	drained  = map[string]string{"default-1": "cordoned", "default-2": "cordoned"}
	accepted = object{"NodeModifyIndex": 7}
)

func TestNomadDrainThatNomadRefusesLetsLeasesComeAgain(t *testing.T) {
	nomadDouble(t, machineAnswers(http.StatusForbidden))
	d := newCordonDouble(t, "default-1", "default-2")
	status, out, errs := runMain(t.Context(), "nomad", "drain", "--node", "one")
	assert.NotZero(t, status)
	assert.Empty(t, out)
	assert.Contains(t, errs, "as it was told")
	assert.Contains(t, errs, "container default-2 gets leases again")
	assert.Equal(t, asItWas, d.are())

	d.states["default-1"] = "cordoned" // by somebody else
	status, _, errs = runMain(t.Context(), "nomad", "drain", "--node", "one", "--force")
	assert.NotZero(t, status)
	assert.NotContains(t, errs, "default-1")
	assert.Equal(t, map[string]string{"default-1": "cordoned", "default-2": "ready"}, d.are(), "what somebody else has cordoned stays")
}

func TestNomadDrainThatCannotCordonAllLetsLeasesComeAgain(t *testing.T) {
	asked := nomadDouble(t, machineAnswers(accepted))
	d := newCordonDouble(t, "default-1", "default-2")
	d.after = func(id string, on bool) int {
		if id == "default-2" && on {
			delete(d.states, id)
			return http.StatusNotFound
		}
		return 0
	}
	status, _, errs := runMain(t.Context(), "nomad", "drain", "--node", "one")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, errs, "cordon default-2: ")
	assert.Contains(t, errs, "--force")
	assert.Equal(t, map[string]string{"default-1": "ready"}, d.are())
	assert.NotContains(t, asked(), "PUT node/"+machineID+"/drain")
}

func TestNomadDrainSaysWhatStaysCordoned(t *testing.T) {
	nomadDouble(t, machineAnswers(http.StatusInternalServerError))
	d := newCordonDouble(t, "default-1", "default-2")
	d.after = func(_ string, on bool) int {
		if on {
			return 0
		}
		return http.StatusForbidden
	}
	status, _, errs := runMain(t.Context(), "nomad", "drain", "--node", "one")
	assert.NotZero(t, status)
	assert.Contains(t, errs, "as it was told", "why it was not drained")
	for id := range asItWas {
		assert.Contains(t, errs, "container "+id+" may get no new leases: ")
		assert.Contains(t, errs, `"berth cordon --off `+id+`" lets them come`)
	}
}

func TestNomadDrainThatIsInterruptedBeforeNomadKnowsLeavesNothing(t *testing.T) {
	for name, interruptAt := range map[string]string{"at the first": "default-1", "at the last": "default-2"} {
		t.Run(name, func(t *testing.T) {
			asked := nomadDouble(t, machineAnswers(accepted))
			d := newCordonDouble(t, "default-1", "default-2")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d.after = func(id string, on bool) int {
				if id == interruptAt && on {
					cancel()
				}
				return 0
			}
			status, out, errs := runMain(ctx, "nomad", "drain", "--node", "one", "--force")
			assert.Equal(t, exitInterrupted, status, errs)
			assert.Empty(t, out)
			assert.Contains(t, errs, "interrupted")
			assert.Equal(t, asItWas, d.are())
			assert.NotContains(t, asked(), "PUT node/"+machineID+"/drain")
		})
	}
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
			d := newCordonDouble(t, "default-1", "default-2")
			status, out, errs := runMain(ctx, "nomad", "drain", "--node", "one")
			assert.Equal(t, exitInterrupted, status, errs)
			assert.Empty(t, out)
			assert.Contains(t, errs, "it goes on all the same; to have work come again: "+
				"nomad node drain -disable "+machineID+" && berth cordon --off default-1 && berth cordon --off default-2")
			assert.Equal(t, drained, d.are())
		})
	}
}

func TestNomadDrainThatSomebodyTakesBackIsNone(t *testing.T) {
	answers := machineAnswers(accepted)
	answers["GET node/"+machineID] = object{"ID": machineID, "LastDrain": object{"Status": "canceled"}}
	answers["GET node/"+machineID+"/allocations"] = []any{object{"ID": "aaaa", "ClientStatus": "running", "Job": object{"Type": "service"}}}
	nomadDouble(t, answers)
	d := newCordonDouble(t, "default-1", "default-2")
	status, _, errs := runMain(t.Context(), "nomad", "drain", "--node", "one")
	assert.Equal(t, exitFailed, status, errs)
	assert.Contains(t, errs, "somebody has taken the drain back")
	assert.Equal(t, asItWas, d.are())
}

func TestNomadDrainThatLosesNomadSaysWhatGoesOn(t *testing.T) {
	answers := machineAnswers(accepted)
	answers["GET node/"+machineID] = http.StatusBadGateway
	nomadDouble(t, answers)
	newCordonDouble(t, "default-1", "default-2")
	status, _, errs := runMain(t.Context(), "nomad", "drain", "--node", "one", "--within", "1s")
	require.Equal(t, exitFailed, status, errs)
	assert.Contains(t, errs, "nomad node drain -disable")
}
