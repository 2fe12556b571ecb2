package nomad

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// scale has Nomad raise or lower the count, and stop single allocations. It
// returns when to do so again; 0: when something happens.
func (p *pool) scale(ctx context.Context) (again time.Duration, err error) {
	if err := p.know(ctx); err != nil {
		return 0, err
	}
	do, err := p.decide(ctx)
	if err != nil {
		return 0, err
	}
	for _, c := range do.alone {
		if err := p.stopAlone(ctx, c); err != nil {
			return 0, err
		}
	}
	if do.to == do.from {
		return do.again, nil
	}
	index, err := p.setCount(ctx, do)
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if err != nil {
		return p.refusedLocked(do, err)
	}
	p.trouble.blocked = ""
	p.b.config.Logger.Info("job scaled", "job", p.job, "from", do.from, "to", do.to)
	p.known.count, p.known.index, p.surplus = do.to, max(p.known.index, index), time.Time{}
	for _, c := range do.above {
		c.told = true
	}
	return do.again, nil
}

// decide plans what Nomad has to do. What was heard of claims and of the lock may
// be old: before something is stopped they are read, and it is planned anew.
func (p *pool) decide(ctx context.Context) (plan, error) {
	p.b.mu.Lock()
	again := p.unplacedLocked(time.Now())
	do := p.planLocked(time.Now())
	p.b.mu.Unlock()
	if do.stops() {
		if err := p.confirm(ctx); err != nil {
			return plan{}, err
		}
		p.b.mu.Lock()
		do = p.planLocked(time.Now())
		p.b.mu.Unlock()
	}
	do.again = soonest(do.again, again)
	return do, nil
}

// confirm reads all claims and the lock. The error is errMoved when another may
// lead.
func (p *pool) confirm(ctx context.Context) error {
	if _, err := p.readVariables(ctx, 0, 0); err != nil {
		return err
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.duty.moved || !p.leadsLocked() {
		return errMoved
	}
	return nil
}

// setCount has Nomad change the count, and returns the job's index since.
func (p *pool) setCount(ctx context.Context, do plan) (index uint64, err error) {
	if do.to < do.from {
		p.b.mu.Lock()
		p.fall = fall{to: do.to, index: do.index, at: time.Now()}
		p.b.mu.Unlock()
	}
	request := &api.ScalingRequest{
		Count: new(int64(do.to)), Target: map[string]string{"Job": p.job, "Group": jobs.Group}, JobModifyIndex: do.index,
		Message: fmt.Sprintf("from %d: %d are needed", do.from, do.to),
	}
	answer, _, err := p.b.client.Jobs().ScaleWithRequest(p.job, request, new(api.WriteOptions).WithContext(ctx))
	if isBlocked(err) && do.to > do.from {
		switch over, raised := p.raise(ctx, do.to, do.index); {
		case isConflict(raised):
			err = raised
		case raised == nil && over != nil:
			answer, err = over, nil
		}
	}
	if err != nil {
		return 0, fmt.Errorf("scale job %s to %d: %w", p.job, do.to, err)
	}
	return answer.JobModifyIndex, nil
}

// refusedLocked is what follows from a count that was not changed, or is not
// known to have been: when to scale again, or the error.
func (p *pool) refusedLocked(do plan, err error) (again time.Duration, _ error) {
	if status := statusOf(err); isConflict(err) || status >= 400 && status < 500 {
		p.fall = fall{} // of any other failure nobody knows what came of it
	}
	switch {
	case isBlocked(err): // its end is told
		if do.to > do.from {
			p.blockedByLocked()
		}
		return p.b.config.Blocked / 10, nil
	case isConflict(err):
		p.known.read = false
		return p.b.config.Retry, nil
	}
	return 0, err
}

// Nomad's words, by which alone such refusals can be told from others. No job's
// ID can hold them, for they have spaces.
const (
	wordsBlocked  = "job scaling blocked due to active deployment"
	wordsConflict = api.RegisterEnforceIndexErrPrefix
)

// isBlocked reports whether Nomad does not scale the job because of a deployment.
func isBlocked(err error) bool { return says(err, http.StatusBadRequest, wordsBlocked) }

// isConflict reports whether somebody else has changed the job, so that nothing
// was done.
func isConflict(err error) bool { return says(err, http.StatusInternalServerError, wordsConflict) }

// says reports whether Nomad has answered with the status and the words.
func says(err error, status int, words string) bool {
	answer, ok := errors.AsType[api.UnexpectedResponseError](err)
	return ok && answer.StatusCode() == status && strings.Contains(answer.Body(), words)
}

// stopAlone has Nomad stop one allocation, and put another in its place.
func (p *pool) stopAlone(ctx context.Context, c *container) error {
	p.b.mu.Lock()
	id := c.alloc
	p.b.mu.Unlock()
	if err := p.stopAlloc(ctx, id); err != nil {
		return err
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	c.told, c.stopped = true, time.Now()
	return nil
}

func (p *pool) stopAlloc(ctx context.Context, id string) error {
	_, err := p.b.client.Allocations().Stop(&api.Allocation{ID: id}, new(api.QueryOptions).WithContext(ctx))
	if err != nil && statusOf(err) != http.StatusNotFound {
		return fmt.Errorf("stop allocation %s: %w", id, err)
	}
	return nil
}
