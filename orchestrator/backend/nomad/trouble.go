package nomad

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"berth/slots"
)

// trouble is why containers do not start, as far as is known here: everybody
// follows the job, whoever scales it. The backend's mutex guards it.
type trouble struct {
	request string    // the last one failed with this; "": it did not
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
	return cmp.Or(t.request, t.room, words)
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
			p.giveUpLocked(c, slots.Errorf(slots.KindPoolExhausted, "start container %s: %s", c.spec.ID, p.trouble.room))
		}
	}
	if len(p.waiting) == 0 {
		return 0
	}
	return p.b.config.Retry
}
