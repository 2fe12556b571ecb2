package nomad_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"berth/jobs"
)

// double is Nomad as far as the backend sees it, behind a real HTTP server:
// jobs, allocations whose ports are served, evaluations, deployments,
// variables, and the event stream, all with indexes. It stops the highest
// index first, as Nomad does.
type double struct {
	t       *testing.T
	server  *httptest.Server
	listen  func() (net.Listener, error) // on a port of its own
	changed *sync.Cond                   // on mu: the index is higher, or it ends

	mu        sync.Mutex
	index     uint64
	jobs      map[string]*api.Job
	allocs    map[string]*api.Allocation
	ports     map[string]net.Listener // by allocation
	variables map[string]*api.Variable
	deployed  map[string]*api.Deployment // the latest, by job
	events    []api.Events
	ended     bool
	epoch     int            // of streams: those of an older one end
	requests  map[string]int // by method and first two elements of the path
	stopped   []int          // indexes, in the order in which a lower count stopped them

	room     int           // allocations that there is room for
	starting time.Duration // how long an allocation is pending
	stopping time.Duration // how long it takes to end
	ready    bool          // /readyz answers 200
	broken   string        // why allocations fail to start; "": they start
	again    time.Duration // until what failed is placed anew; 0: never
	deploys  bool          // a scaling begins a deployment that a test ends
	canaries int           // that it tries first
	silent   bool          // events get lost
	stale    *listed       // what lists of allocations answer; nil: what there is
	nodes    map[string]*api.Node
	apart    map[string]int         // how often a node was disconnected or connected again
	pick     func() string          // where to place; nil: on mine
	stops    func(allocID string)   // is called when one is told to stop or fails
	gives    func(allocID string)   // is called when one is given up that is not heard of
	mine     string                 // the node of what is placed now
	blinds   bool                   // nobody may read nodes
	old      bool                   // it knows no locks, and takes them for writes
	locks    map[string]*time.Timer // of variables, by the lock's ID: ends it
	fault    func(r *http.Request) (status int, body string)
	// unanswered reports whether the request is carried out and answered with
	// 500; nil: none is. d.mu is held.
	unanswered func(r *http.Request) bool
	driver     *driver // runs what the jobs say; nil: the ports are answered here
}

func newDouble(t *testing.T) *double {
	t.Helper()
	d := newDoubleWithoutServer(t)
	d.server = httptest.NewServer(http.HandlerFunc(d.serve))
	t.Cleanup(func() {
		d.end()
		d.server.CloseClientConnections()
		d.server.Close()
	})
	return d
}

func newDoubleWithoutServer(t *testing.T) *double {
	t.Helper()
	d := &double{
		listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		t:      t, index: 10, jobs: map[string]*api.Job{}, allocs: map[string]*api.Allocation{}, ports: map[string]net.Listener{},
		variables: map[string]*api.Variable{}, deployed: map[string]*api.Deployment{}, locks: map[string]*time.Timer{}, mine: "node-0", apart: map[string]int{}, requests: map[string]int{},
		room: 1 << 20, starting: 40 * time.Millisecond, stopping: time.Millisecond, ready: true,
	}
	d.changed = sync.NewCond(&d.mu)
	return d
}

// end ends what waits and what the allocations serve.
func (d *double) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.changed.Broadcast()
	for _, l := range d.ports {
		_ = l.Close() // most are closed
	}
}

// do changes something.
func (d *double) do(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	d.changed.Broadcast()
}

// emit tells of a change at the next index.
func (d *double) emit(topic api.Topic, kind, job, payload string, value any) {
	if d.silent {
		return
	}
	d.events = append(d.events, api.Events{Index: d.index, Events: []api.Event{{
		Topic: topic, Type: kind, Key: job, FilterKeys: []string{job}, Index: d.index, Payload: map[string]any{payload: value},
	}}})
}

func (d *double) put(a *api.Allocation) {
	d.index++
	a.ModifyIndex, a.ModifyTime = d.index, time.Now().UnixNano()
	d.allocs[a.ID] = a
	plain := *a
	plain.Job = nil
	d.emit(api.TopicAllocation, "AllocationUpdated", a.JobID, "Allocation", &plain)
}

// counted lists a job's allocations that Nomad means to keep, by index.
func (d *double) counted(job string) []*api.Allocation {
	var all []*api.Allocation
	for _, a := range d.allocs {
		if a.JobID == job && a.DesiredStatus == api.AllocDesiredStatusRun && !a.ClientTerminalStatus() {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *api.Allocation) int { return at(a) - at(b) })
	return all
}

func at(a *api.Allocation) int {
	_, after, _ := strings.Cut(a.Name, "[")
	n, _ := strconv.Atoi(strings.TrimSuffix(after, "]"))
	return n
}

// schedule places and stops what the job's count says.
func (d *double) schedule(id string) {
	job := d.jobs[id]
	want := *job.TaskGroups[0].Count
	if *job.Stop {
		want = 0
	}
	have := d.counted(id)
	heard := slices.DeleteFunc(slices.Clone(have), func(a *api.Allocation) bool { return a.ClientStatus == api.AllocClientStatusUnknown })
	for range len(heard) - want { // what it does not hear of counts here not, and below it does
		top := have[len(have)-1]
		have = have[:len(have)-1]
		d.stopped = append(d.stopped, at(top))
		d.stop(top)
	}
	eval := &api.Evaluation{ID: uuid(), JobID: id, JobModifyIndex: *job.JobModifyIndex, Status: api.EvalStatusComplete}
	for len(have) < want {
		if len(d.running()) >= d.room {
			eval.FailedTGAllocs = map[string]*api.AllocationMetric{jobs.Group: {
				NodesEvaluated: 3, NodesExhausted: 3, DimensionExhausted: map[string]int{"memory": 3},
			}}
			break
		}
		have = append(have, d.place(job, have))
		slices.SortFunc(have, func(a, b *api.Allocation) int { return at(a) - at(b) })
	}
	d.index++
	eval.ModifyIndex = d.index
	d.emit(api.TopicEvaluation, "EvaluationUpdated", id, "Evaluation", eval)
}

func (d *double) running() []*api.Allocation {
	var all []*api.Allocation
	for _, a := range d.allocs {
		if !a.ClientTerminalStatus() {
			all = append(all, a)
		}
	}
	return all
}

func uuid() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// place makes an allocation of the lowest index that is not among have.
func (d *double) place(job *api.Job, have []*api.Allocation) *api.Allocation {
	index := 0
	for index < len(have) && at(have[index]) == index {
		index++
	}
	listener, err := d.listen()
	require.NoError(d.t, err)
	address := listener.Addr().(*net.TCPAddr)
	a := &api.Allocation{
		ID: uuid(), Name: fmt.Sprintf("%s.%s[%d]", *job.ID, jobs.Group, index), JobID: *job.ID, TaskGroup: jobs.Group,
		NodeID: d.mine, DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusPending, CreateTime: time.Now().UnixNano(),
		AllocatedResources: &api.AllocatedResources{Shared: api.AllocatedSharedResources{
			Ports: []api.PortMapping{{Label: jobs.Port, Value: address.Port, To: address.Port, HostIP: "127.0.0.1"}},
		}},
	}
	if d.pick != nil {
		a.NodeID = d.pick()
	}
	d.ports[a.ID] = listener
	d.put(a)
	time.AfterFunc(d.starting, func() { d.do(func() { d.started(a) }) })
	if d.driver != nil {
		_ = listener.Close() // for the task
		return a
	}
	go func() { // ends with the listener
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // a test's
			d.mu.Lock()
			defer d.mu.Unlock()
			if !d.ready {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
	}()
	return a
}

// started is an allocation whose start has ended.
func (d *double) started(a *api.Allocation) {
	now := *d.allocs[a.ID]
	if d.ended || now.ClientTerminalStatus() || now.DesiredStatus != api.AllocDesiredStatusRun {
		return
	}
	if d.broken != "" {
		d.fail(a.ID, api.TaskDriverFailure, d.broken)
		return
	}
	if d.driver != nil {
		d.driver.start(&now)
	}
	now.ClientStatus = api.AllocClientStatusRunning
	d.put(&now)
}

// fail ends an allocation by itself. When another is to be placed instead it is
// written twice more: with the evaluation that will, and when it has.
func (d *double) fail(id, kind, words string) {
	now := *d.allocs[id]
	now.ClientStatus = api.AllocClientStatusFailed
	now.TaskStates = map[string]*api.TaskState{jobs.Group: {Failed: true, Events: []*api.TaskEvent{{Type: kind, DisplayMessage: words}}}}
	d.put(&now)
	_ = d.ports[id].Close()
	if d.again > 0 {
		later := now
		later.FollowupEvalID = uuid()
		d.put(&later)
		time.AfterFunc(d.again, func() {
			d.do(func() {
				if !d.ended && d.jobs[now.JobID] != nil {
					replaced := later
					replaced.DesiredStatus = api.AllocDesiredStatusStop
					d.put(&replaced)
					d.schedule(now.JobID)
				}
			})
		})
	}
}

// stop has an allocation end.
func (d *double) stop(a *api.Allocation) {
	if d.stops != nil && a.DesiredStatus == api.AllocDesiredStatusRun {
		d.stops(a.ID)
	}
	now := *a
	now.DesiredStatus = api.AllocDesiredStatusStop
	d.put(&now)
	time.AfterFunc(d.stopping, func() {
		if d.driver != nil {
			d.driver.stop(a.ID)
		}
		d.do(func() {
			over := *d.allocs[a.ID]
			if d.ended || over.ClientTerminalStatus() || over.ClientStatus == api.AllocClientStatusUnknown {
				return
			}
			over.ClientStatus = api.AllocClientStatusComplete
			d.put(&over)
			_ = d.ports[a.ID].Close()
		})
	})
}

// serve answers as Nomad's API does.
func (d *double) serve(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	d.mu.Lock()
	d.requests[r.Method+" "+parts[0]]++
	fault := d.fault
	d.mu.Unlock()
	if fault != nil {
		if status, body := fault(r); status != 0 {
			http.Error(w, body, status)
			return
		}
	}
	if parts[0] == "event" {
		d.stream(w, r)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.changed.Broadcast()
	if d.unanswered != nil && d.unanswered(r) {
		http.Error(w, "rpc error: EOF", http.StatusInternalServerError)
		w = httptest.NewRecorder()
	}
	switch parts[0] {
	case "jobs":
		d.register(w, r)
	case "job":
		d.job(w, r, parts)
	case "allocations":
		d.list(w, r)
	case "allocation":
		a := d.allocs[parts[1]]
		if a == nil {
			http.Error(w, "alloc not found", http.StatusNotFound)
			return
		}
		if a.ClientStatus == api.AllocClientStatusUnknown { // it is stopped when its machine is back
			now := *a
			now.DesiredTransition.Migrate = new(true)
			d.put(&now)
		} else {
			d.stop(a)
			d.schedule(a.JobID)
		}
		d.answer(w, api.AllocStopResponse{})
	case "nodes":
		d.listNodes(w)
	case "node":
		d.answer(w, d.nodes[parts[1]])
	case "vars":
		d.listVariables(w, r)
	case "var":
		d.variable(w, r, strings.Join(parts[1:], "/"))
	default:
		http.Error(w, "no such path", http.StatusNotFound)
	}
}

func (d *double) answer(w http.ResponseWriter, value any) { d.answerAt(w, d.index, value) }

func (d *double) answerAt(w http.ResponseWriter, index uint64, value any) {
	w.Header().Set("X-Nomad-Index", strconv.FormatUint(index, 10))
	w.Header().Set("X-Nomad-KnownLeader", "true")
	w.Header().Set("X-Nomad-LastContact", "0")
	_ = json.NewEncoder(w).Encode(value) // whoever asked may have left
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
	id, have := *request.Job.ID, uint64(0)
	if known := d.jobs[id]; known != nil {
		have = *known.JobModifyIndex
	}
	if request.EnforceIndex && request.JobModifyIndex != have {
		http.Error(w, conflict(request.JobModifyIndex, have), http.StatusInternalServerError)
		return
	}
	d.change(request.Job)
	d.answer(w, api.JobRegisterResponse{JobModifyIndex: *request.Job.JobModifyIndex})
}

// conflict is Nomad's answer to a change of another index than the job's.
func conflict(asked, have uint64) string {
	return fmt.Sprintf("%s %d: job exists with conflicting job modify index: %d", api.RegisterEnforceIndexErrPrefix, asked, have)
}

// change stores a job and does what it says.
func (d *double) change(job *api.Job) {
	d.index++
	job.JobModifyIndex, job.Stop = new(d.index), new(false)
	d.jobs[*job.ID] = job
	d.emit(api.TopicJob, "JobRegistered", *job.ID, "Job", job)
	if d.deploys {
		d.deploy(*job.ID, api.DeploymentStatusRunning)
		d.deployed[*job.ID].TaskGroups = map[string]*api.DeploymentState{jobs.Group: {DesiredTotal: *job.TaskGroups[0].Count, DesiredCanaries: d.canaries}}
	}
	d.schedule(*job.ID)
}

// deploy has a deployment of the job be as it is said.
func (d *double) deploy(job, status string) {
	d.index++
	v := &api.Deployment{ID: uuid(), JobID: job, Status: status, ModifyIndex: d.index}
	if known := d.deployed[job]; known != nil && known.Status == api.DeploymentStatusRunning {
		v.ID = known.ID
	}
	d.deployed[job] = v
	d.emit(api.TopicDeployment, "DeploymentStatusUpdate", job, "Deployment", v)
}

func (d *double) job(w http.ResponseWriter, r *http.Request, parts []string) {
	job := d.jobs[parts[1]]
	switch {
	case job == nil:
		http.Error(w, "job not found", http.StatusNotFound)
	case len(parts) == 3 && parts[2] == "deployment":
		d.answer(w, d.deployed[parts[1]])
	case r.Method == http.MethodGet:
		d.answer(w, job)
	case r.Method == http.MethodDelete:
		job.Stop = new(true)
		d.schedule(parts[1])
		d.answer(w, api.JobDeregisterResponse{})
	default:
		var request api.ScalingRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if v := d.deployed[parts[1]]; v != nil && v.Status == api.DeploymentStatusRunning {
			http.Error(w, "job scaling blocked due to active deployment", http.StatusBadRequest)
			return
		}
		if request.JobModifyIndex != 0 && request.JobModifyIndex != *job.JobModifyIndex {
			http.Error(w, conflict(request.JobModifyIndex, *job.JobModifyIndex), http.StatusInternalServerError)
			return
		}
		next := *job
		group := *job.TaskGroups[0]
		group.Count = new(int(*request.Count))
		next.TaskGroups = []*api.TaskGroup{&group}
		d.change(&next)
		d.answer(w, api.JobRegisterResponse{JobModifyIndex: *next.JobModifyIndex})
	}
}

// listed is what there was once.
type listed struct {
	index  uint64
	allocs map[string]*api.Allocation
}

// list lists the job's allocations, as there are or were.
func (d *double) list(w http.ResponseWriter, r *http.Request) {
	from := listed{d.index, d.allocs}
	if d.stale != nil {
		from = *d.stale
	}
	job := strings.TrimSuffix(strings.TrimPrefix(r.URL.Query().Get("filter"), `JobID == "`), `"`)
	all := []*api.AllocationListStub{}
	for _, a := range from.allocs {
		if a.JobID == job {
			stub := &api.AllocationListStub{
				ID: a.ID, Name: a.Name, JobID: a.JobID, DesiredStatus: a.DesiredStatus, ClientStatus: a.ClientStatus,
				NodeID: a.NodeID, TaskStates: a.TaskStates, ModifyIndex: a.ModifyIndex, ModifyTime: a.ModifyTime, CreateTime: a.CreateTime,
			}
			if r.URL.Query().Get("resources") == "true" {
				stub.AllocatedResources = a.AllocatedResources
			}
			all = append(all, stub)
		}
	}
	d.answerAt(w, from.index, all)
}

// listVariables is a blocking query.
func (d *double) listVariables(w http.ResponseWriter, r *http.Request) {
	prefix := r.URL.Query().Get("prefix")
	after, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	newest := func() (all []*api.VariableMetadata, index uint64) {
		for path, v := range d.variables {
			if strings.HasPrefix(path, prefix) {
				all = append(all, v.Metadata())
				index = max(index, v.ModifyIndex)
			}
		}
		return all, max(index, 1)
	}
	all, index := newest()
	epoch, over := d.epoch, false
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		wait = 5 * time.Minute
	}
	timer := time.AfterFunc(wait, func() { d.do(func() { over = true }) })
	defer timer.Stop()
	for after > 0 && index <= after && !over && !d.ended && epoch == d.epoch && r.Context().Err() == nil {
		d.changed.Wait()
		all, index = newest()
	}
	w.Header().Set("X-Nomad-Index", strconv.FormatUint(index, 10))
	_ = json.NewEncoder(w).Encode(append([]*api.VariableMetadata{}, all...))
}

func (d *double) variable(w http.ResponseWriter, r *http.Request, path string) {
	known := d.variables[path]
	if r.Method == http.MethodGet {
		if known == nil {
			http.Error(w, "variable not found", http.StatusNotFound)
			return
		}
		d.answer(w, known)
		return
	}
	var v api.Variable
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, operation := range []string{"lock-acquire", "lock-renew", "lock-release"} {
		if r.URL.Query().Has(operation) && !d.old {
			d.lock(w, operation, path, &v)
			return
		}
	}
	if words := invalid(&v); words != "" {
		http.Error(w, words, http.StatusBadRequest)
		return
	}
	have := uint64(0)
	if known != nil {
		have = known.ModifyIndex
	}
	if cas := r.URL.Query().Get("cas"); cas != "" && cas != strconv.FormatUint(have, 10) {
		w.WriteHeader(http.StatusConflict)
		if known == nil {
			known = &api.Variable{Path: path, Items: map[string]string{}}
		}
		_ = json.NewEncoder(w).Encode(known)
		return
	}
	d.index++
	v.Path, v.ModifyIndex, v.Lock = path, d.index, nil
	d.variables[path] = &v
	d.answer(w, &v)
}

// stream sends the events that are newer, then those that come.
func (d *double) stream(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	jobs := jobsOf(r.URL.Query())
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	stop := make(chan struct{})
	defer close(stop)
	go func() { // ends with the stream
		select {
		case <-r.Context().Done():
		case <-stop:
		}
		d.do(func() {})
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	next, epoch := 0, d.epoch
	for !d.ended && epoch == d.epoch && r.Context().Err() == nil {
		for ; next < len(d.events); next++ {
			if e := d.events[next]; e.Index > after && slices.Contains(jobs, e.Events[0].Key) {
				if json.NewEncoder(w).Encode(e) != nil {
					return
				}
			}
		}
		w.(http.Flusher).Flush()
		d.changed.Wait()
	}
}

// jobsOf are the jobs that a stream is asked to tell of.
func jobsOf(q url.Values) []string {
	var all []string
	for _, topic := range q["topic"] {
		_, job, _ := strings.Cut(topic, ":")
		all = append(all, job)
	}
	return all
}
