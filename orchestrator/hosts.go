package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"

	"berth/orchestrator/backend/local"
	"berth/orchestrator/calls"
	"berth/orchestrator/config"
	"berth/orchestrator/function"
	"berth/orchestrator/pool"
)

// templateLocal is the pool of local sandboxes.
const templateLocal = "local"

// hosts are the local sandboxes of each organization: a container of its own on
// this machine, started when a run first needs it, whose slots share a directory
// that lasts.
//
//	local/<organization>/   what its container is made of
//	homes/<organization>/   the organization's own directory
type hosts struct {
	config Config
	logger hclog.Logger

	mu     sync.Mutex // guards what follows; opening one keeps the others waiting
	all    map[string]*hosted
	closed bool
}

// hosted is what one organization has here.
type hosted struct {
	backend *local.Backend
	pools   *pool.Pools
	calls   *calls.Carrier
	place   *function.Place
}

// makeHostDirectories makes those of all organizations, and first the one that
// holds them: slots with users of their own pass through it, so it must not be
// made as closed as the first directory in it. They are there before any slot
// is: what is not there cannot be hidden.
func (c Config) makeHostDirectories() error {
	if err := os.MkdirAll(c.DataDir, 0o711); err != nil { //nolint:gosec // see above
		return fmt.Errorf("make data directory: %w", err)
	}
	for name, mode := range map[string]os.FileMode{"local": 0o711, "homes": 0o700} {
		if err := os.MkdirAll(filepath.Join(c.DataDir, name), mode); err != nil {
			return fmt.Errorf("make directories of local sandboxes: %w", err)
		}
	}
	return nil
}

// openHosts adopts the containers that an earlier process has left.
func (c Config) openHosts(ctx context.Context, logger hclog.Logger) (*hosts, error) {
	h := &hosts{config: c, logger: logger.Named(templateLocal), all: map[string]*hosted{}}
	entries, err := os.ReadDir(filepath.Join(c.DataDir, "local"))
	if err != nil {
		return nil, fmt.Errorf("open local sandboxes: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || config.CheckOrganization(e.Name()) != nil {
			continue
		}
		if _, err := h.place(ctx, e.Name()); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

// home is the organization's own directory.
func (c Config) home(organization string) string {
	return filepath.Join(c.DataDir, "homes", organization)
}

// place is where the organization's runs go; it is made when it is first asked
// for.
func (h *hosts) place(ctx context.Context, organization string) (*function.Place, error) {
	if err := config.CheckOrganization(organization); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errors.New("local sandboxes are closed")
	}
	if one := h.all[organization]; one != nil {
		return one.place, nil
	}
	one, err := h.config.openHosted(context.WithoutCancel(ctx), organization, h.logger)
	if err != nil {
		return nil, err
	}
	h.all[organization] = one
	return one.place, nil
}

// close ends them all.
func (h *hosts) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	errs := make(chan error, len(h.all))
	for _, one := range h.all {
		go func() { errs <- one.close() }()
	}
	var all []error
	for range h.all {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// openHosted opens what one organization has here.
func (c Config) openHosted(ctx context.Context, organization string, logger hclog.Logger) (*hosted, error) {
	main := c.Templates[0]
	t := pool.Template{
		Name: templateLocal, Slots: c.LocalSlots, MaxContainers: 1,
		Isolation: main.Isolation, Network: main.Network, MaxTimeout: main.MaxTimeout, Limits: main.Limits,
	}
	binary := c.Sandboxd
	if c.Backend != backendLocal {
		binary = "" // the setting is about other machines
	}
	home := c.home(organization)
	b, err := local.Open(ctx, local.Config{
		Dir: filepath.Join(c.DataDir, "local", organization), Binary: binary, Keep: c.Keep,
		Args:  append(append(c.hidden(), "--home", home), c.SandboxdArgs...),
		Grace: c.DrainTimeout, Logger: logger, // the main pool has proven what it expects
	})
	if err != nil {
		return nil, impossible(ctx, err)
	}
	pools, err := pool.New(b, connect, pool.Config{Templates: []pool.Template{t}, Log: logger})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	one := &hosted{backend: b, pools: pools, calls: calls.New(pools, calls.Config{Template: templateLocal, Logger: logger})}
	one.place = &function.Place{Leases: pools, Calls: carrier{one.calls}, Template: templateLocal, Home: home}
	return one, nil
}

// close ends what openHosted has opened.
func (h *hosted) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), lastCalls)
	defer cancel()
	return errors.Join(h.calls.Close(ctx), h.pools.Close(), h.backend.Close())
}
