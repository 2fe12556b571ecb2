package nomad

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// demand is how many callers wait for a slot of a pool: here, and at the other
// orchestrators. One that does not scale the job writes its number into a
// variable, so that the one that does knows it. The backend's mutex guards it.
type demand struct {
	waiting int       // here
	told    int       // as the variable says
	toldAt  time.Time // when it was written last
	others  map[string]heard
}

// heard is what another orchestrator wrote.
type heard struct {
	text    string
	waiting int
	at      time.Time // when it was new here, by our own clock
}

// Times of demands. Nothing is written while nobody waits.
const (
	demandPause = time.Second      // between two writes
	demandAgain = 20 * time.Second // a number that stays is written again
	demandFresh = time.Minute      // one that is not written again is that of an orchestrator that died
	demandOld   = 5 * time.Minute  // and by its writer's clock, which may be another
)

func (p *pool) demandPath() string { return jobs.VariablePath(p.job) + "/demand" }

// Ask says how many callers wait for a slot of the template at this
// orchestrator, while another one scales it. It never blocks; the other hears of
// it by its Duty.
func (b *Backend) Ask(template string, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pools[b.jobID(template)]
	if p == nil {
		return
	}
	p.demand.waiting = waiting
	if waiting != p.demand.told || waiting > 0 && time.Since(p.demand.toldAt) > demandAgain {
		nudge(p.tells)
	}
}

// tellDemand writes what Ask says until ctx ends.
func (p *pool) tellDemand(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.tells:
		}
		if err := p.writeDemand(ctx); err != nil && ctx.Err() == nil {
			p.b.config.Logger.Warn("cannot say how many callers wait", "job", p.job, "error", err)
		}
		pause(ctx, demandPause)
	}
}

// writeDemand writes once how many wait here, and leaves out orchestrators that
// have not written for long.
func (p *pool) writeDemand(ctx context.Context) error {
	now := time.Now()
	p.b.mu.Lock()
	all := p.draftLocked(p.demandPath())
	waiting := p.demand.waiting
	p.b.mu.Unlock()
	maps.DeleteFunc(all.items, func(_, text string) bool {
		_, at := readDemand(text)
		return now.Sub(at) > demandOld
	})
	all.items[p.b.item] = fmt.Sprintf("%d %d %s", waiting, now.Unix(), p.b.config.Name)
	written, err := p.write(ctx, all)
	if err != nil {
		return err
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if !written {
		nudge(p.tells) // what is stored is known now
		return nil
	}
	p.demand.told, p.demand.toldAt = waiting, now
	return nil
}

// readDemand reads an item: how many wait, and when that was written. What
// cannot be read is nobody, long ago.
func readDemand(text string) (waiting int, at time.Time) {
	var unix int64
	if n, _ := fmt.Sscanf(text, "%d %d", &waiting, &unix); n < 2 || waiting < 0 {
		return 0, time.Time{}
	}
	return waiting, time.Unix(unix, 0)
}

// heardDemandLocked takes in what all have written.
func (p *pool) heardDemandLocked(v *api.Variable) {
	others := map[string]heard{}
	for item, text := range v.Items {
		if item == p.b.item {
			continue
		}
		known, ok := p.demand.others[item]
		if !ok || known.text != text {
			known = heard{text: text, at: time.Now()}
			var at time.Time
			if known.waiting, at = readDemand(text); time.Since(at) > demandOld {
				known.waiting = 0
			}
		}
		others[item] = known
	}
	p.demand.others = others
}

// demandLocked is how many callers wait at other orchestrators.
func (p *pool) demandLocked() (waiting int) {
	for _, one := range p.demand.others {
		if time.Since(one.at) <= demandFresh {
			waiting += one.waiting
		}
	}
	return waiting
}
