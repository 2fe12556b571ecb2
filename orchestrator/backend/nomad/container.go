package nomad

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/orchestrator/backend"
)

// container is one that was asked for or found and has not ended. Its fields
// but the channels are guarded by the backend's mutex.
type container struct {
	spec    backend.Spec
	pool    *pool
	alloc   string // its allocation; "" while it waits for one
	up      bool   // its claim is written
	since   time.Time
	waiting int           // calls of Start that wait for it
	err     error         // why it never came up; set before begun is closed
	stopped time.Time     // since when it is to end, or Nomad is told; zero: it is not to
	told    bool          // Nomad was told to stop it
	begun   chan struct{} // closed when it is up, or never will be
	over    chan struct{} // closed when it has ended
}

func newContainer(p *pool, spec backend.Spec) *container {
	return &container{spec: spec, pool: p, since: time.Now(), begun: make(chan struct{}), over: make(chan struct{})}
}

// ending reports whether it is to end.
func (c *container) ending() bool { return !c.stopped.IsZero() }

// alloc is one allocation, as far as it matters here.
type alloc struct {
	id       string
	index    int
	url      string
	desired  string
	client   string
	modify   uint64
	created  time.Time
	node     string
	modified time.Time
	moved    bool   // Nomad was told to place it elsewhere
	moves    bool   // off a machine that is drained
	words    string // Nomad's last about it
	ready    bool   // it has answered
	probed   bool   // somebody asks it
	rotated  bool   // its agent takes the token of the pool's next secret
}

// ended reports whether nothing of it runs any more.
func (a *alloc) ended() bool {
	switch a.client {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// counted reports whether Nomad counts it, and means to keep it.
func (a *alloc) counted() bool { return !a.ended() && a.desired == api.AllocDesiredStatusRun }

// free reports whether a start may claim it, if nobody has; what is not below
// that index is to end.
func (a *alloc) free(below int) bool {
	return a.ready && a.counted() && a.client == api.AllocClientStatusRunning && !a.moves && a.index < below
}

// created is when an allocation was, or was changed. Events have lost the nanoseconds on their
// way, so that there is no more to it than the second.
func created(nanoseconds int64) time.Time { return time.Unix(nanoseconds/int64(time.Second), 0) }

// fromStub reads an allocation of a list.
func fromStub(s *api.AllocationListStub) *alloc {
	return &alloc{
		id: s.ID, index: jobs.AllocationIndex(s.Name), url: jobs.AllocationURL(s.AllocatedResources), desired: s.DesiredStatus, client: s.ClientStatus,
		node: s.NodeID, modify: s.ModifyIndex, modified: created(s.ModifyTime), created: created(s.CreateTime), words: lastWords(s.TaskStates, s.ClientDescription, s.DesiredDescription),
	}
}

// fromEvent reads an allocation of an event.
func fromEvent(s *api.Allocation) *alloc {
	return &alloc{
		id: s.ID, index: jobs.AllocationIndex(s.Name), url: jobs.AllocationURL(s.AllocatedResources), desired: s.DesiredStatus, client: s.ClientStatus,
		node: s.NodeID, modify: s.ModifyIndex, modified: created(s.ModifyTime), created: created(s.CreateTime), moves: s.DesiredTransition.ShouldMigrate(),
		words: lastWords(s.TaskStates, s.ClientDescription, s.DesiredDescription),
	}
}

// lastWords are Nomad's own about how an allocation went.
func lastWords(states map[string]*api.TaskState, descriptions ...string) string {
	return cmp.Or(jobs.LastWords(states, descriptions...), "no reason given")
}

// tokenOf is the token of the container in an allocation.
func tokenOf(secret, allocID string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(allocID))
	return hex.EncodeToString(mac.Sum(nil))
}
