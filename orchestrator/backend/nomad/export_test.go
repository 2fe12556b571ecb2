package nomad

import (
	"context"
	"net"

	"github.com/hashicorp/nomad/api"
)

// Over is the Config with connections that are made in another way.
func (c Config) Over(dial func(ctx context.Context, network, address string) (net.Conn, error)) Config {
	c.dial = dial
	return c
}

// Write stores a variable of the template's pool.
func (b *Backend) Write(ctx context.Context, template, path string, items map[string]string) (bool, error) {
	b.mu.Lock()
	p := b.pools[b.jobID(template)]
	b.mu.Unlock()
	return p.write(ctx, path, items)
}

// Starting reports whether the container was asked for and is not up yet.
func (b *Backend) Starting(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.all[id]
	return c != nil && !c.up
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
