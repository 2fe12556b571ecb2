package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/cmd/berth/container"
	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	agent "berth/sandboxd/client"
	"berth/slots"
)

// The pool that is measured.
const (
	poolContainers = 2
	poolSlots      = 16 // of each
	allSlots       = poolContainers * poolSlots
)

const (
	poolWithin = time.Minute // until all its slots are there
	poolLook   = 20 * time.Millisecond
	// leaseSeconds is longer than any row takes, so that nobody renews.
	leaseSeconds = 1800
)

// poolKind is which pool a row wants.
type poolKind int

const (
	noPool    poolKind = iota
	slotsPool          // several containers whose slots rows lease
	toolsPool          // one container whose slots run function tools, see tools
)

// pool is an orchestrator with its containers, and the leases that rows share.
type pool struct {
	kind    poolKind
	slots   int                  // of all its containers
	running *container.Container // the orchestrator
	client  *client.Client
	leases  []poolapi.Lease
	tools   *tools // of toolsPool
}

// providePool starts the pool, unless it runs.
func (b *bench) providePool(ctx context.Context, kind poolKind) error {
	if b.pool != nil && b.pool.kind == kind {
		return nil
	}
	if b.Orchestrator == "" {
		return errors.New("no orchestrator to measure is named")
	}
	if err := b.stop(); err != nil {
		return err
	}
	p := &pool{kind: kind, slots: allSlots}
	config := container.Pool{Orchestrator: b.Orchestrator, Agent: b.Binary, Containers: poolContainers, Slots: poolSlots, Args: b.Args}
	var args []string
	if kind == toolsPool {
		var err error
		if p.tools, err = newTools(ctx, b.Orchestrator); err != nil {
			return err
		}
		p.slots, config.Containers, config.Slots = toolSlots, 1, toolSlots
		config.Args = slices.Concat([]string{"--environments-packages", p.tools.packages, "--log-level", "trace"}, b.Args)
		args = []string{"--config-key-file", p.tools.key, "--log-level", "trace"}
	}
	of := config.Config()
	of.Args = append(of.Args, args...)
	running, err := container.Start(ctx, of)
	if err != nil {
		return errors.Join(err, p.tools.remove())
	}
	p.running, b.pool = running, p
	if err := p.connect(ctx); err != nil {
		return errors.Join(err, b.stop())
	}
	direct, _, err := p.direct(ctx)
	if err != nil {
		return errors.Join(err, b.stop())
	}
	defer direct.Close()
	health, err := direct.Health(ctx)
	b.level = health.Isolation.Level
	return err
}

// connect waits until all slots are there. No request is sent twice: what a
// retry would hide is to be seen.
func (p *pool) connect(ctx context.Context) (err error) {
	if p.client, err = client.New(client.Config{URL: p.running.URL, Token: p.running.Token, Retries: -1}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, poolWithin, fmt.Errorf("not all of %d slots are there after %v", p.slots, poolWithin))
	defer cancel()
	tick := time.NewTicker(poolLook)
	defer tick.Stop()
	for {
		pools, err := p.client.Pools(ctx)
		if err == nil && len(pools) == 1 && pools[0].Available == p.slots {
			if p.tools != nil {
				return p.tools.connect(ctx, p.client)
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for pool: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

func (p *pool) close() error {
	if p.client != nil {
		p.client.Close()
	}
	return errors.Join(p.running.Close(), p.tools.remove())
}

// hold returns so many leases, which stay until the pool ends.
func (p *pool) hold(ctx context.Context, n int) ([]poolapi.Lease, error) {
	for len(p.leases) < n {
		lease, err := p.acquire(ctx, fmt.Sprintf("bench-%d", len(p.leases)))
		if err != nil {
			return nil, err
		}
		p.leases = append(p.leases, lease)
	}
	return p.leases[:n], nil
}

func (p *pool) acquire(ctx context.Context, trajectory string) (poolapi.Lease, error) {
	return p.client.Acquire(ctx, poolapi.LeaseRequest{Trajectory: trajectory, TTLSeconds: leaseSeconds, WaitS: poolWithin.Seconds()})
}

// execute runs a call that has to succeed in the slot of the lease.
func (p *pool) execute(ctx context.Context, lease poolapi.Lease, c poolapi.Call) error {
	result, err := p.client.Execute(ctx, lease.ID, c)
	if err != nil {
		return err
	}
	return succeeded(result)
}

// direct is a client of the container that has the first lease, past the
// orchestrator, and a call of true in that lease's slot.
func (p *pool) direct(ctx context.Context) (*agent.Client, api.Call, error) {
	url, token, err := p.where(ctx)
	if err != nil {
		return nil, api.Call{}, err
	}
	to, err := agent.New(agent.Config{URL: url, Token: token, Retries: -1})
	if err != nil {
		return nil, api.Call{}, err
	}
	held, err := to.Leases(ctx)
	if err != nil {
		to.Close()
		return nil, api.Call{}, err
	}
	lease := p.leases[0]
	at := slices.IndexFunc(held, func(l slots.Lease) bool { return l.SlotID == lease.SlotID })
	if at < 0 {
		to.Close()
		return nil, api.Call{}, fmt.Errorf("container %s does not have lease %s", lease.Container, lease.ID)
	}
	c := poolCall("true")
	return to, api.Call{SlotID: lease.SlotID, Tool: c.Tool, Args: c.Args, Timeout: c.TimeoutS, Token: &held[at].Token}, nil
}

// where is the container that has the first lease, and what it answers to.
func (p *pool) where(ctx context.Context) (url, token string, err error) {
	leases, err := p.hold(ctx, 1)
	if err != nil {
		return "", "", err
	}
	containers, err := p.client.Containers(ctx)
	if err != nil {
		return "", "", err
	}
	at := slices.IndexFunc(containers, func(c poolapi.Container) bool { return c.ID == leases[0].Container })
	if at < 0 {
		return "", "", fmt.Errorf("the pool does not have container %s", leases[0].Container)
	}
	text, err := os.ReadFile(filepath.Join(p.running.DataDir, "containers", leases[0].Container, "token"))
	if err != nil {
		return "", "", fmt.Errorf("read token of container: %w", err)
	}
	return containers[at].URL, strings.TrimSpace(string(text)), nil
}
