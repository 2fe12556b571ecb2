package operate_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/operate"
)

// double is Nomad as far as an operator sees it: what tests say of evaluations
// and deployments is told one after the other, the last again and again.
type double struct {
	t      *testing.T
	server *httptest.Server

	mu          sync.Mutex // guards what follows
	job         *api.Job
	variables   map[string]*api.Variable
	plan        api.JobPlanResponse
	evaluation  []api.Evaluation
	deployments []api.Deployment
	allocs      []*api.AllocationListStub
	nodes       []*api.NodeListStub
	blocked     []*api.Evaluation
	logs        map[string]string // by allocation, task and kind
	fault       func(r *http.Request) (status int, words string)
	asked       []string // method and path
	registered  int
}

func newDouble(t *testing.T) *double {
	t.Helper()
	d := &double{t: t, variables: map[string]*api.Variable{}}
	d.server = httptest.NewServer(http.HandlerFunc(d.serve))
	t.Cleanup(d.server.Close)
	return d
}

func (d *double) operator() *operate.Operator {
	d.t.Helper()
	o, err := operate.Open(operate.Config{Address: d.server.URL})
	require.NoError(d.t, err)
	d.t.Cleanup(o.Close)
	return o
}

// told takes the next of what is told one after the other.
func told[T any](all *[]T) (one T, found bool) {
	if len(*all) == 0 {
		return one, false
	}
	one = (*all)[0]
	if len(*all) > 1 {
		*all = (*all)[1:]
	}
	return one, true
}

func (d *double) serve(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, r.Method+" "+r.URL.Path)
	if d.fault != nil {
		if status, words := d.fault(r); status != 0 {
			http.Error(w, words, status)
			return
		}
	}
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	answer := func(v any) {
		w.Header().Set("X-Nomad-Index", "7")
		_ = json.NewEncoder(w).Encode(v) // whoever asked may have left
	}
	id := "berth-t"
	if d.job != nil {
		id = *d.job.ID
	}
	switch {
	case path == "validate/job":
		answer(api.JobValidateResponse{DriverConfigValidated: true})
	case strings.HasPrefix(path, "job/") && strings.HasSuffix(path, "/plan"):
		answer(d.plan)
	case path == "jobs":
		d.register(w, r)
	case path == "job/"+id && d.job != nil:
		answer(d.job)
	case path == "job/"+id+"/deployment":
		one, found := told(&d.deployments)
		if !found {
			answer(nil)
			return
		}
		answer(one)
	case path == "job/"+id+"/allocations", path == "allocations":
		answer(d.allocs)
	case path == "job/"+id+"/evaluations":
		answer(d.blocked)
	case strings.HasPrefix(path, "client/fs/logs/"):
		text, found := d.logs[strings.TrimPrefix(path, "client/fs/logs/")+" "+r.URL.Query().Get("task")+" "+r.URL.Query().Get("type")]
		if !found {
			http.Error(w, "no such allocation", http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, text)
	case strings.HasPrefix(path, "evaluation/"):
		one, _ := told(&d.evaluation)
		answer(one)
	case strings.HasPrefix(path, "deployment/"):
		one, _ := told(&d.deployments)
		answer(one)
	case path == "nodes":
		answer(d.nodes)
	case path == "vars":
		all := []*api.VariableMetadata{}
		for at, v := range d.variables {
			if strings.HasPrefix(at, r.URL.Query().Get("prefix")) {
				all = append(all, v.Metadata())
			}
		}
		answer(all)
	case strings.HasPrefix(path, "var/"):
		d.variable(w, r, strings.TrimPrefix(path, "var/"))
	case strings.HasSuffix(path, "/stop"):
		for _, a := range d.allocs {
			if "allocation/"+a.ID+"/stop" == path {
				a.ClientStatus = api.AllocClientStatusComplete
			}
		}
		answer(api.AllocStopResponse{})
	case strings.HasPrefix(path, "allocation/"):
		for _, a := range d.allocs {
			if "allocation/"+a.ID == path {
				answer(api.Allocation{ID: a.ID, ClientStatus: a.ClientStatus})
				return
			}
		}
		http.Error(w, "alloc not found", http.StatusNotFound)
	default:
		http.Error(w, "not found: "+path, http.StatusNotFound)
	}
}

func (d *double) register(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Job            *api.Job
		EnforceIndex   bool
		JobModifyIndex uint64
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	have := uint64(0)
	if d.job != nil {
		have = *d.job.JobModifyIndex
	}
	if !request.EnforceIndex || request.JobModifyIndex != have {
		http.Error(w, "Enforcing job modify index "+fmt.Sprint(request.JobModifyIndex)+": job exists with conflicting job modify index", http.StatusInternalServerError)
		return
	}
	d.registered++
	d.job = request.Job
	d.job.JobModifyIndex, d.job.Version = new(have+5), new(uint64(d.registered))
	_ = json.NewEncoder(w).Encode(api.JobRegisterResponse{EvalID: "eval", JobModifyIndex: have + 5, Warnings: "mind the gap"})
}

func (d *double) variable(w http.ResponseWriter, r *http.Request, path string) {
	known := d.variables[path]
	if r.Method == http.MethodGet {
		if known == nil {
			http.Error(w, "variable not found", http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(known)
		return
	}
	var v api.Variable
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	have := uint64(0)
	if known != nil {
		have = known.ModifyIndex
	}
	if r.URL.Query().Get("cas") != fmt.Sprint(have) {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(known)
		return
	}
	v.Path, v.ModifyIndex = path, have+1
	d.variables[path] = &v
	_ = json.NewEncoder(w).Encode(v)
}

// template is that of the tests' pool.
func template() jobs.Template { return jobs.Template{Job: "berth-t", Driver: jobs.RawExec, Count: 2} }

func pool(t *testing.T, with jobs.Template) *api.Job {
	t.Helper()
	job, err := jobs.Sandboxd(with)
	require.NoError(t, err)
	return job
}

// steps are what an operation tells of.
type steps []string

func (s *steps) add(format string, args ...any) { *s = append(*s, fmt.Sprintf(format, args...)) }
