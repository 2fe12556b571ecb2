package nomad_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
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

func (d *dials) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.add(1)
	return &counted{Conn: c, closed: sync.OnceFunc(func() { d.add(-1) })}, nil
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

func TestAnIdleBackendTakesTwoConnectionsAndTwoRequestsForARenewal(t *testing.T) {
	const ttl, during = 2 * time.Second, 3 * time.Second
	for _, n := range []int{10, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			d := newDouble(t)
			d.starting = time.Millisecond
			c := d.config(t)
			c.LockTTL, c.LockDelay, c.Spare = ttl, 20*time.Millisecond, time.Hour
			var conns dials
			b := open(t, c.Over(conns.dial))
			start(t, b, "c-0")
			at := api.DefaultConfig()
			at.Address = d.server.URL
			operator, err := api.NewClient(at)
			require.NoError(t, err)
			_, _, err = operator.Jobs().Scale(job, jobs.Group, new(n), "by hand", false, nil, nil)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return d.count() == n }, patience, 10*time.Millisecond)
			total := func() (sum int) {
				d.mu.Lock()
				defer d.mu.Unlock()
				for _, n := range d.requests {
					sum += n
				}
				return sum
			}
			most := 2 * (int(during/(ttl*4/5*15/16)) + 1)
			require.Eventually(t, func() bool { // what the allocations have set off comes to an end
				conns.take()
				before := total()
				pause(t.Context(), during)
				asked, open := total()-before, conns.take()
				t.Log(asked, "requests", open, "connections")
				return asked <= most && open <= 2
			}, patience, time.Millisecond, "it asks more, or keeps more open")
			assert.True(t, b.Duty("t").Held)
		})
	}
}
