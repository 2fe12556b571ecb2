package nomad

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// statusOf is the status of Nomad's answer; 0: there was none.
func statusOf(err error) int {
	if answer, ok := errors.AsType[api.UnexpectedResponseError](err); ok {
		return answer.StatusCode()
	}
	return 0
}

// Forbidden reports whether Nomad has refused to be asked by this token.
func Forbidden(err error) bool {
	status := statusOf(err)
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// follow keeps what is known of allocations true, beginning with what was
// listed at the index.
func (b *Backend) follow(index uint64) {
	wait := b.config.Retry
	for b.life.Err() == nil {
		began := time.Now()
		why := b.stream(b.life, index)
		if statusOf(why) != 0 {
			b.config.Logger.Warn("cannot follow events", "error", why)
		}
		// Where there is no stream to be had, lists have to do, less and less often.
		if time.Since(began) > 50*b.config.Retry || errors.Is(why, errNewJob) {
			wait = b.config.Retry
		}
		for b.life.Err() == nil {
			pause(b.life, wait/10)
			var err error
			if index, err = b.list(b.life, b.jobs()); err == nil {
				break
			}
			b.config.Logger.Warn("cannot list allocations", "error", err)
			pause(b.life, min(wait, 50*b.config.Retry))
			wait = min(2*wait, 500*b.config.Retry)
		}
		wait = min(2*wait, 500*b.config.Retry)
	}
}

// list reads all there is of the jobs. Events after the index are news.
func (b *Backend) list(ctx context.Context, all []string) (index uint64, err error) {
	if err := b.listNodes(ctx); err != nil {
		return 0, err
	}
	for i, job := range all {
		b.mu.Lock()
		p := b.pools[job]
		b.mu.Unlock()
		at, err := p.list(ctx)
		if err != nil {
			return 0, err
		}
		if i == 0 || at < index {
			index = at
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgetLocked(time.Now())
	return index, nil
}

// list reads all there is of the job.
func (p *pool) list(ctx context.Context) (index uint64, err error) {
	if err := p.readJob(ctx); err != nil {
		return 0, err
	}
	q := new(api.QueryOptions).WithContext(ctx)
	deployment, deployments, err := p.b.client.Jobs().LatestDeployment(p.job, q)
	if err != nil && statusOf(err) != http.StatusNotFound {
		return 0, fmt.Errorf("read deployment of job %s: %w", p.job, err)
	}
	q = &api.QueryOptions{Filter: fmt.Sprintf("JobID == %q", p.job), Params: map[string]string{"resources": "true"}}
	stubs, meta, err := p.b.client.Allocations().List(q.WithContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("list allocations of job %s: %w", p.job, err)
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if deployments != nil && deployments.LastIndex >= p.deployed {
		p.deployment = ""
		if deployment != nil {
			p.deployedLocked(deployment)
		}
	}
	p.listed = meta.LastIndex
	p.fall.expire(time.Now(), p.b.config.Blocked)
	seen := map[string]bool{}
	for _, stub := range stubs {
		seen[stub.ID] = true
		p.applyLocked(fromStub(stub), false)
	}
	p.goneLocked(seen, meta.LastIndex)
	nudge(p.nudge)
	return meta.LastIndex, nil
}

// deployedLocked takes in how a deployment goes.
func (p *pool) deployedLocked(d *api.Deployment) {
	if d.ModifyIndex < p.deployed {
		return
	}
	p.deployed = d.ModifyIndex
	switch d.Status {
	case api.DeploymentStatusSuccessful, api.DeploymentStatusFailed, api.DeploymentStatusCancelled:
		if p.deployment == d.ID || p.deployment == "" {
			p.deployment, p.trouble.blocked = "", ""
		}
	default:
		p.deployment = d.ID
	}
	nudge(p.nudge)
}

var (
	errRelist = errors.New("it was followed for long enough")
	errNewJob = errors.New("there is another job")
	errBack   = errors.New("the stream went back to an older index")
	errEmpty  = errors.New("there is nothing in it")
	errStream = errors.New("the stream has ended")
)

// stream takes in events until there is a reason to list again.
func (b *Backend) stream(ctx context.Context, index uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.config.Relist, errRelist)
	defer cancel()
	all := b.jobs()
	if len(all) == 0 {
		select {
		case <-b.newJob:
		case <-ctx.Done():
		}
		return errNewJob
	}
	topics := map[api.Topic][]string{api.TopicAllocation: all, api.TopicDeployment: all, api.TopicEvaluation: all, api.TopicJob: all}
	b.mu.Lock()
	if !b.blind {
		topics[api.TopicNode] = []string{"*"}
	}
	b.mu.Unlock()
	events, err := b.client.EventStream().Stream(ctx, topics, index, new(api.QueryOptions))
	if err != nil {
		return fmt.Errorf("follow events: %w", err)
	}
	last := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.newJob:
			return errNewJob
		case some, ok := <-events:
			switch {
			case !ok:
				return errStream
			case some.Err != nil:
				return fmt.Errorf("follow events: %w", some.Err)
			case some.Index < last:
				return errBack
			}
			last = some.Index
			for _, e := range some.Events {
				if err := b.hear(e); err != nil {
					return err
				}
			}
		}
	}
}

// hear takes in one event.
func (b *Backend) hear(e api.Event) error {
	switch e.Topic { //nolint:exhaustive // no other is asked for
	case api.TopicAllocation:
		a, err := e.Allocation()
		if err != nil || a == nil {
			return unreadable(e, err)
		}
		b.with(a.JobID, func(p *pool) {
			if a.ModifyIndex > p.listed {
				p.applyLocked(fromEvent(a), true)
				nudge(p.nudge)
			}
		})
	case api.TopicNode:
		return b.hearNode(e)
	case api.TopicDeployment:
		d, err := e.Deployment()
		if err != nil || d == nil {
			return unreadable(e, err)
		}
		b.with(d.JobID, func(p *pool) { p.deployedLocked(d) })
	case api.TopicEvaluation:
		v, err := e.Evaluation()
		if err != nil || v == nil {
			return unreadable(e, err)
		}
		b.with(v.JobID, func(p *pool) { p.evaluatedLocked(v) })
	case api.TopicJob:
		job, deregistered, err := e.DeregisteredJob()
		if err != nil || job == nil || job.ID == nil {
			return unreadable(e, err)
		}
		b.with(*job.ID, func(p *pool) {
			if deregistered || job.JobModifyIndex == nil || *job.JobModifyIndex > p.known.index {
				p.known.read, p.known.checked = false, false
				nudge(p.nudge)
			}
		})
	}
	return nil
}

// unreadable is why everything is listed again after an event.
func unreadable(e api.Event, err error) error {
	return fmt.Errorf("event of topic %s cannot be read: %w", e.Topic, cmp.Or(err, errEmpty))
}

// with calls do with the pool of the job, if there is one.
func (b *Backend) with(job string, do func(*pool)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pools[job]; p != nil {
		do(p)
	}
}

// evaluatedLocked takes in whether Nomad found room for everything.
func (p *pool) evaluatedLocked(v *api.Evaluation) {
	if v.JobModifyIndex < p.known.index || v.Status != api.EvalStatusComplete && v.Status != api.EvalStatusBlocked {
		return
	}
	if v.Status == api.EvalStatusComplete && v.JobModifyIndex > p.fall.index {
		p.fall = fall{} // what it has stopped was told before it
	}
	if m := v.FailedTGAllocs[jobs.Group]; m != nil {
		p.trouble.room = jobs.Unplaced(m)
		p.trouble.told(p.trouble.room)
	} else if v.Status == api.EvalStatusComplete {
		p.trouble.room = ""
	}
	nudge(p.nudge)
}
