package nomad_test

import (
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"
)

// drain begins to drain a node, which is not placed on any more. As with the
// job's migrate block, nothing is stopped until the deadline; the zero time is
// none.
func (d *double) drain(id string, deadline time.Time) {
	d.index++
	if d.nodes == nil {
		d.nodes = map[string]*api.Node{}
	}
	spec := api.DrainSpec{}
	if !deadline.IsZero() {
		spec.Deadline = time.Until(deadline)
		time.AfterFunc(spec.Deadline, func() { d.do(func() { d.force(id, deadline) }) })
	}
	d.nodes[id] = &api.Node{
		ID: id, Drain: true, ModifyIndex: d.index, SchedulingEligibility: api.NodeSchedulingIneligible,
		DrainStrategy: &api.DrainStrategy{DrainSpec: spec, ForceDeadline: deadline, StartedAt: time.Now()},
	}
	d.emit(api.TopicNode, "NodeDrain", "*", "Node", d.nodes[id])
}

// undrain ends a drain by hand.
func (d *double) undrain(id string) {
	d.index++
	d.nodes[id] = &api.Node{ID: id, ModifyIndex: d.index}
	d.emit(api.TopicNode, "NodeDrain", "*", "Node", d.nodes[id])
}

// force migrates what is left on a node whose time is over.
func (d *double) force(id string, deadline time.Time) {
	n := d.nodes[id]
	if d.ended || n.DrainStrategy == nil || !n.DrainStrategy.ForceDeadline.Equal(deadline) {
		return // it was taken back
	}
	jobs := map[string]bool{}
	for _, a := range d.allocs {
		if a.NodeID == id && a.DesiredStatus == api.AllocDesiredStatusRun && !a.ClientTerminalStatus() {
			moving := *a
			moving.DesiredTransition.Migrate = new(true)
			d.put(&moving)
			d.stop(&moving)
			jobs[a.JobID] = true
		}
	}
	for job := range jobs {
		d.schedule(job)
	}
}

// listNodes answers with the nodes that are drained, whatever was asked for.
func (d *double) listNodes(w http.ResponseWriter) {
	if d.blinds {
		http.Error(w, "Permission denied", http.StatusForbidden)
		return
	}
	all := []*api.NodeListStub{}
	for _, n := range d.nodes {
		if n.DrainStrategy != nil {
			all = append(all, &api.NodeListStub{ID: n.ID, Drain: true, ModifyIndex: n.ModifyIndex, SchedulingEligibility: n.SchedulingEligibility})
		}
	}
	d.answer(w, all)
}

// disconnect has Nomad not hear of a node any more: what runs there is unknown,
// and lost when it does not for as long as the job says.
func (d *double) disconnect(id string) {
	d.apart[id]++
	nth := d.apart[id]
	for _, a := range d.running() {
		if a.NodeID != id {
			continue
		}
		now := *a
		switch {
		case a.ClientStatus != api.AllocClientStatusRunning:
			d.lose(&now)
			continue
		case a.DesiredStatus != api.AllocDesiredStatusRun:
			continue // it ends all the same
		}
		now.ClientStatus = api.AllocClientStatusUnknown
		d.put(&now)
		time.AfterFunc(*d.jobs[a.JobID].TaskGroups[0].Disconnect.LostAfter, func() {
			d.do(func() {
				if d.apart[id] == nth {
					d.lost(a.ID)
				}
			})
		})
	}
}

// unheard reports whether Nomad does not hear of the node.
func (d *double) unheard(id string) bool { return d.apart[id]%2 == 1 }

// lost gives up an allocation whose node is not heard of.
func (d *double) lost(allocID string) {
	now := *d.allocs[allocID]
	if !d.ended && now.ClientStatus == api.AllocClientStatusUnknown {
		d.lose(&now)
	}
}

func (d *double) lose(a *api.Allocation) {
	if d.gives != nil {
		d.gives(a.ID)
	}
	a.ClientStatus, a.DesiredStatus = api.AllocClientStatusLost, api.AllocDesiredStatusStop
	d.put(a)
	_ = d.ports[a.ID].Close()
	d.schedule(a.JobID)
}

// reconnect has Nomad hear of the node again. What was to stop meanwhile is
// stopped now.
func (d *double) reconnect(id string) {
	d.apart[id]++
	changed := map[string]bool{}
	for _, a := range d.allocs {
		if a.NodeID != id || a.ClientStatus != api.AllocClientStatusUnknown {
			continue
		}
		now := *a
		now.ClientStatus = api.AllocClientStatusRunning
		d.put(&now)
		changed[a.JobID] = true
		if a.DesiredStatus != api.AllocDesiredStatusRun || a.DesiredTransition.ShouldMigrate() {
			d.stop(&now)
		}
	}
	for job := range changed {
		d.schedule(job)
	}
}
