package nomad

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/orchestrator/backend"
)

// demand is how many callers wait for a slot of a pool: here, and at the other
// orchestrators. One that does not scale the job writes its number into a
// variable, so that the one that does knows it. The backend's mutex guards it.
type demand struct {
	here   backend.Demand
	told   backend.Demand // as the variable says
	toldAt time.Time      // when it was written last
	others map[string]heard
}

// heard is what another orchestrator wrote.
type heard struct {
	text   string
	demand backend.Demand
	at     time.Time // when it was new here, by our own clock
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
// it by its Duty. While nobody waits nothing else matters.
func (b *Backend) Ask(template string, demand backend.Demand) {
	if demand.Waiting == 0 {
		demand.Containers = 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pools[b.jobID(template)]
	if p == nil {
		return
	}
	p.demand.here = demand
	if demand != p.demand.told || demand.Waiting > 0 && time.Since(p.demand.toldAt) > demandAgain {
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
	here := p.demand.here
	p.b.mu.Unlock()
	maps.DeleteFunc(all.items, func(_, text string) bool {
		_, at := readDemand(text)
		return now.Sub(at) > demandOld
	})
	all.items[p.b.item] = fmt.Sprintf("%d %d %d %s", here.Waiting, now.Unix(), here.Containers, p.b.config.Name)
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
	p.demand.told, p.demand.toldAt = here, now
	return nil
}

// readDemand reads an item, and when that was written. What cannot be read is
// nobody, long ago.
func readDemand(text string) (demand backend.Demand, at time.Time) {
	var unix int64
	if n, _ := fmt.Sscanf(text, "%d %d %d", &demand.Waiting, &unix, &demand.Containers); n < 3 || demand.Waiting < 0 {
		return backend.Demand{}, time.Time{}
	}
	return demand, time.Unix(unix, 0)
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
			if known.demand, at = readDemand(text); time.Since(at) > demandOld {
				known.demand = backend.Demand{}
			}
		}
		others[item] = known
	}
	p.demand.others = others
}

// demandLocked is how many callers wait at other orchestrators.
func (p *pool) demandLocked() (all []backend.Demand) {
	for _, one := range p.demand.others {
		if one.demand.Waiting > 0 && time.Since(one.at) <= demandFresh {
			all = append(all, one.demand)
		}
	}
	return all
}
