package pool

import (
	"fmt"
	"strings"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// maxWords is how much is kept of why a container did not start, in characters:
// everybody who waits is told it.
const maxWords = 1000

// Trouble is why a pool has no more containers. The zero value says that
// nothing is known to be wrong.
type Trouble struct {
	Failed int       // starts in a row that this orchestrator has tried in vain; 0: what follows is the backend's, without times
	At     time.Time // when the last of them failed
	Next   time.Time // none is tried before
	Words  string    // why, as whoever starts containers says it: one line of at most 1000 characters
}

// troubleLocked is what is known to be wrong. Who does not start containers
// only knows what the backend says.
func (p *pool) troubleLocked() Trouble {
	if p.trouble.Failed > 0 && p.duty.Held {
		return p.trouble
	}
	return Trouble{Words: line(p.duty.Trouble)}
}

// startedLocked takes in how a start went. One that failed keeps others from
// being tried, for longer each time.
func (p *pool) startedLocked(err error, now time.Time) {
	if err == nil {
		p.trouble = Trouble{}
		return
	}
	p.trouble = Trouble{
		Failed: p.trouble.Failed + 1, At: now, Words: line(slots.AsError(err).Error()),
		Next: now.Add(min(time.Minute, time.Second<<min(p.trouble.Failed, 6))),
	}
}

// dutyLocked takes in whose it is to start containers. What failed before it
// became another's is not told of any more.
func (p *pool) dutyLocked(duty backend.Duty) (moved bool) {
	moved = p.duty.Held != duty.Held || p.duty.Holder != duty.Holder || p.duty.Shared != duty.Shared
	p.duty = duty
	if moved {
		p.trouble = Trouble{}
	}
	return moved
}

// whyLocked says for those who find no free slot why there are no more of them;
// "": nothing is known of it.
func (p *pool) whyLocked(now time.Time) string {
	t := p.troubleLocked()
	switch {
	case t.Failed > 0:
		next := "none is under way"
		if wait := t.Next.Sub(now); wait > 0 {
			next = "the next is tried in " + ago(wait)
		} else if len(p.starts) > 0 {
			next = "another is under way"
		}
		return fmt.Sprintf("the last container did not start %s ago (failures in a row: %d; %s): %s", ago(now.Sub(t.At)), t.Failed, next, t.Words)
	case p.duty.Shared && !p.duty.Held:
		who := "no orchestrator is known to start its containers now"
		if p.duty.Holder != "" {
			who = "another orchestrator (" + p.duty.Holder + ") starts its containers"
		}
		if t.Words != "" {
			who += ", and there is trouble: " + t.Words
		}
		return who
	case t.Words != "":
		return "no container can be started: " + t.Words
	}
	return ""
}

func ago(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }

// line makes one line of somebody's words, of a bounded length.
func line(words string) string {
	return fmt.Sprintf("%.*s", maxWords, strings.Join(strings.Fields(words), " "))
}
