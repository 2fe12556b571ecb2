package nomad_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"berth/jobs"
	"berth/orchestrator/backend/nomad"
)

// dials counts the connections that are open.
type dials struct {
	mu   sync.Mutex
	open int
	most int
}

func (d *dials) add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open += n
	d.most = max(d.most, d.open)
}

// take returns how many were open at once at most since the last take.
func (d *dials) take() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	most := d.most
	d.most = d.open
	return most
}

// over is the way of making connections, with a count of them.
func (d *dials) over(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		d.add(1)
		return &counted{Conn: c, closed: sync.OnceFunc(func() { d.add(-1) })}, nil
	}
}

type counted struct {
	net.Conn
	closed func()
}

// Close is net.Conn's.
func (c *counted) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// asks is how many requests there were of all kinds.
func (d *double) asks() (sum int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.requests {
		sum += n
	}
	return sum
}

// TestAnIdleBackendAsksNomadAtMostOnceInFiveSeconds has the time that defaults
// take, in a time of its own.
func TestAnIdleBackendAsksNomadAtMostOnceInFiveSeconds(t *testing.T) {
	const window = 5 * time.Minute
	for _, c := range []struct{ templates, allocations, requests, connections int }{
		{1, 10, 60, 2},
		{1, 1000, 60, 2},
		{5, 10, 290, 10}, // each has a lock and a query of its own, and at times both a new connection
	} {
		t.Run(fmt.Sprint(c.templates, " templates, ", c.allocations, " allocations"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, n := newDoubleWithoutServer(t), &pipes{all: map[string]*pipeListener{}}
				config := nomad.Config{API: d.serveOver(t, n), Job: jobs.Template{Driver: jobs.RawExec}}
				var conns dials
				b := open(t, config.Over(conns.over(n.dial)))
				var started sync.WaitGroup
				for i := range c.allocations {
					started.Go(func() {
						s := spec(fmt.Sprintf("c-%d", i))
						s.Template = fmt.Sprintf("t%d", i%c.templates)
						_, err := b.Start(t.Context(), s)
						assert.NoError(t, err)
					})
				}
				started.Wait()
				time.Sleep(time.Minute) // what the starts have set off comes to an end
				for range 3 {
					conns.take()
					before := d.asks()
					time.Sleep(window)
					asked, open := d.asks()-before, conns.take()
					t.Log(asked, "requests,", open, "connections")
					assert.LessOrEqual(t, asked, c.requests)
					assert.LessOrEqual(t, open, c.connections)
				}
				assert.Len(t, list(t, b), c.allocations)
				assert.True(t, b.Duty("t0").Held)
			})
		})
	}
}
