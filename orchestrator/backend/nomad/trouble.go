package nomad

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"berth/jobs"
	"berth/slots"
)

// trouble is why containers do not start, as far as is known here: everybody
// follows the job, whoever scales it. The backend's mutex guards it.
type trouble struct {
	request string    // the last one failed with this; "": it did not
	blocked string    // by which deployment Nomad scales nothing; "": by none
	room    string    // why Nomad found none; "": it did
	words   string    // Nomad's last about why no container came up; "": one has since
	at      time.Time // when it had them to say
}

// wordsHold is how long Nomad's words stand for how things are. The one that
// scales tries again every minute as long as a container is wanted.
const wordsHold = 5 * time.Minute

// told takes in why no container came up.
func (t *trouble) told(words string) { t.words, t.at = words, time.Now() }

// String is what is to be said about it; "": there is none.
func (t *trouble) String() string {
	words := t.words
	if time.Since(t.at) > wordsHold {
		words = ""
	}
	return cmp.Or(t.request, t.held(), words)
}

// held is by what starts are held up until that passes; "": by nothing.
func (t *trouble) held() string {
	if t.blocked != "" && t.room != "" {
		return t.blocked + ": " + t.room
	}
	return cmp.Or(t.blocked, t.room)
}

// blockedByLocked takes in that Nomad scales nothing while a deployment tries
// something new.
func (p *pool) blockedByLocked() {
	words := "a deployment is tried first, and Nomad scales nothing meanwhile"
	if p.deployment != "" {
		words = fmt.Sprintf("deployment %.8s is tried first, and Nomad scales nothing meanwhile; `%s` ends it", p.deployment, jobs.EndDeployment(p.b.config.API.Namespace, p.deployment))
	}
	if p.trouble.blocked != words {
		p.b.config.Logger.Info("a deployment blocks scaling", "job", p.job, "why", words)
	}
	p.trouble.blocked = words
}

// failForGoodLocked ends the starts that wait, when it does not help to ask
// again.
func (p *pool) failForGoodLocked(err error) {
	switch statusOf(err) {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
	default:
		return
	}
	for _, c := range slices.Clone(p.waiting) {
		p.giveUpLocked(c, slots.Errorf(slots.KindInternal, "start container %s: %w", c.spec.ID, err))
	}
}

// unplacedLocked ends the starts that Nomad has found no room for in time, and
// returns when to look at the others again; 0: there are none.
func (p *pool) unplacedLocked(now time.Time) (again time.Duration) {
	if p.trouble.room == "" {
		return 0
	}
	coming := 0
	for _, a := range p.allocs {
		if a.counted() && !a.unheard() && p.ofAllocLocked(a.id) == nil {
			coming++
		}
	}
	for _, c := range slices.Clone(p.waiting[min(coming, len(p.waiting)):]) {
		if now.Sub(c.since) >= p.b.config.Unplaced {
			p.giveUpLocked(c, slots.Errorf(slots.KindPoolExhausted, "start container %s: %s", c.spec.ID, p.trouble.held()))
		}
	}
	if len(p.waiting) == 0 {
		return 0
	}
	return p.b.config.Retry
}
