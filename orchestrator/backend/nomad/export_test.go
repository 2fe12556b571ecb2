package nomad

import (
	"context"
	"maps"
	"net"

	"github.com/hashicorp/nomad/api"
)

// Over is the Config with connections that are made in another way.
func (c Config) Over(dial func(ctx context.Context, network, address string) (net.Conn, error)) Config {
	c.dial = dial
	return c
}

// Draft begins to change a variable of the template's pool as it is known.
// write stores it with one more item, or without any.
func (b *Backend) Draft(template, path string) (known map[string]string, write func(ctx context.Context, item, text string) (bool, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pools[b.jobID(template)]
	d := p.draftLocked(path)
	return maps.Clone(d.items), func(ctx context.Context, item, text string) (bool, error) {
		if d.items[item] = text; item == "" {
			clear(d.items)
		}
		return p.write(ctx, d)
	}
}

// Starting reports whether the container was asked for and is not up yet.
func (b *Backend) Starting(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.all[id]
	return c != nil && !c.up
}

// Used is how many IDs are known to be used up.
func (b *Backend) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ended)
}

// Unheard is how many allocations are known to be on machines that Nomad does
// not hear of.
func (b *Backend) Unheard() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.pools {
		for _, a := range p.allocs {
			if a.client == api.AllocClientStatusUnknown {
				n++
			}
		}
	}
	return n
}

// Moves reports whether an allocation is known to be about to move.
func (b *Backend) Moves() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.pools {
		for _, a := range p.allocs {
			if a.moves {
				return true
			}
		}
	}
	return false
}
