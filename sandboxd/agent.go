package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/sandboxd/api"
	"berth/sandboxd/environment"
	"berth/sandboxd/execution"
	"berth/sandboxd/httpapi"
	"berth/sandboxd/keeper"
	"berth/sandboxd/listen"
	"berth/sandboxd/tool"
	"berth/slots"
	"berth/slots/sandbox"
)

// memoryTarget is how large the agent's heap may grow before the collector
// works harder, besides the results that are kept: those are live, and a target
// near them would have it work all the time.
const memoryTarget = 96 << 20

// Agent is one container's server, opened and not yet serving.
type Agent struct {
	config   Config
	logger   hclog.Logger
	lock     *os.File
	guard    *guard
	host     *sandbox.Host
	registry *execution.Registry
	keeper   *keeper.Keeper
	server   *httpapi.Server

	environments *environment.Store
}

// Open listens, probes, and begins to open the slots. The error is a
// *sandbox.UnmetError when the machine does not give the required isolation.
func Open(ctx context.Context, c Config, version string, logger hclog.Logger) (_ *Agent, err error) {
	debug.SetMemoryLimit(memoryTarget + c.KeepBytes)
	a := &Agent{config: c, logger: logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	token, err := api.ReadToken(c.TokenFile)
	if err != nil {
		return nil, err
	}
	metricsToken, err := api.ReadMetricsToken(c.MetricsTokenFile, token)
	if err != nil {
		return nil, err
	}
	for _, dir := range closeToOthers(c.DataDir, os.Getenv("NOMAD_SECRETS_DIR"), os.Getenv("NOMAD_TASK_DIR")) {
		logger.Warn("the scheduler's directory stays open to others", "directory", dir)
	}
	if err := a.listen(ctx); err != nil {
		return nil, err
	}
	if a.lock, err = lockDirectory(c.DataDir); err != nil {
		return nil, err
	}
	// The journal may be long: it is read while the slots are being probed.
	var reading sync.WaitGroup
	var journalErr error
	reading.Go(func() {
		a.registry, journalErr = execution.Open(execution.Config{
			Journal: filepath.Join(c.DataDir, "journal"), Keep: c.Keep, KeepBytes: c.KeepBytes, Logger: logger,
		})
	})
	a.host, err = sandbox.Open(ctx, a.hostConfig())
	reading.Wait()
	if err = errors.Join(err, journalErr); err != nil {
		return nil, err
	}
	metrics := httpapi.NewMetrics(tool.New(tool.Builtin(nil, "")...).Names())
	a.environments, err = environment.Open(environment.Deps{Logger: logger, Site: a.host.Environments(), Observer: metrics}, a.environmentConfig())
	if err != nil {
		return nil, err
	}
	tools := tool.New(tool.Builtin(a.environments, a.host.Home())...)
	a.keeper, err = keeper.New(keeper.Deps{
		Logger: logger, Registry: a.registry, Tools: tools, Open: a.openSlot, Observer: metrics,
	}, a.keeperConfig(version))
	if err != nil {
		return nil, err
	}
	a.server = httpapi.New(httpapi.Deps{ //nolint:contextcheck // calls have contexts of their own
		Logger: logger, Metrics: metrics, Executions: a.keeper, Registry: a.registry, Slots: a.keeper, Leases: a.keeper, Files: a.keeper,
		Environments: a.environments, Terminals: a.keeper,
	}, httpapi.Config{Token: token, MetricsToken: metricsToken, MaxConns: c.MaxConns})
	a.announce(version)
	return a, nil
}

func (a *Agent) listen(ctx context.Context) error {
	ln, err := listen.TCP(ctx, a.config.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if a.guard, err = newGuard(ln, a.isSlot); err != nil {
		return errors.Join(fmt.Errorf("guard listener: %w", err), ln.Close())
	}
	return nil
}

// isSlot goes by the range alone: connections come before the probe has ended.
func (a *Agent) isSlot(uid int) bool { return sandbox.IsSlotUID(uid, a.config.FirstUID) }

// Address is where the agent listens.
func (a *Agent) Address() net.Addr { return a.guard.Addr() }

func (a *Agent) hostConfig() sandbox.Config {
	c := a.config
	port := 0
	if tcp, ok := a.guard.Addr().(*net.TCPAddr); ok {
		port = tcp.Port
	}
	hide, secrets := append([]string{c.DataDir}, c.Hide...), c.tokenFiles()
	for _, path := range c.Hide {
		// What nobody else may read is a secret as the tokens are.
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o007 == 0 {
			secrets = append(secrets, path)
		}
	}
	for _, name := range []string{"NOMAD_ALLOC_DIR", "NOMAD_TASK_DIR", "NOMAD_SECRETS_DIR"} {
		hide = append(hide, os.Getenv(name))
	}
	require := c.Require
	if !c.Network {
		// A level that cannot take the network away must not leave it silently.
		require.Axes = maps.Clone(require.Axes)
		if require.Axes == nil {
			require.Axes = slots.Axes{}
		}
		require.Axes[slots.AxisNet] = "loopback-only"
	}
	return sandbox.Config{
		DataDir: filepath.Join(c.DataDir, "sandboxes"), Slots: c.Slots,
		Attempt: c.Attempt, Require: require, Limits: c.Limits, Disk: c.Disk, Network: c.Network, PrivateRoot: c.Private,
		AgentPort: port, RefusesUIDs: true, FirstUID: c.FirstUID, Env: c.Env, Hide: hide, Secrets: secrets, Home: c.Home, NoCgroup: !c.Cgroups,
	}
}

func (a *Agent) keeperConfig(version string) keeper.Config {
	c := a.config
	return keeper.Config{
		Slots: c.Slots, StateDir: filepath.Join(c.DataDir, "state"),
		DefaultTimeout: c.DefaultTimeout, MaxTimeout: c.MaxTimeout, OutputLimit: c.OutputLimit, SpillMax: c.SpillMax,
		Isolation: a.host.Isolation(), DataDir: c.DataDir, Version: version,
		WorkspaceDir: func(slot string) string { return filepath.Join(c.DataDir, "sandboxes", "slots", slot, "workspace") },
	}
}

func (a *Agent) environmentConfig() environment.Config {
	c := a.config
	return environment.Config{
		StateDir: filepath.Join(c.DataDir, "environments"), MaxBytes: c.EnvironmentsMaxSize, Timeout: c.EnvironmentsTimeout, Packages: c.EnvironmentsPackages,
	}
}

func (a *Agent) openSlot(ctx context.Context, slot string, generation uint64, files bool) (keeper.Sandbox, error) {
	open := a.host.NewSandbox
	if files {
		open = a.host.Reopen
	}
	s, err := open(ctx, slot, generation)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// announce says once what is in force.
func (a *Agent) announce(version string) {
	r := a.host.Report()
	a.logger.Info("isolation probed", "level", r.Isolation.Level.String(), "axes", r.Isolation.Axes, "mechanism", r.Mechanism, "cgroup", r.Cgroup, "disk", r.Disk)
	for _, t := range r.Attempts {
		if t.Error != "" {
			a.logger.Info("isolation not available", "mechanism", t.Mechanism, "error", t.Error, "mend", t.Mend)
		}
	}
	for _, w := range r.Isolation.Weak {
		a.logger.Warn("isolation has a weakness", "weakness", w)
	}
	if a.config.Network && r.Isolation.Axes["net"] == "host" {
		a.logger.Warn("slots can reach the agent's port: the token alone protects it")
	}
	if a.config.TokenFile == "" {
		a.logger.Warn("no token: whoever reaches the address may use every slot", "address", a.Address().String())
	}
	if r.Isolation.Unsafe {
		a.logger.Warn("slots can read each other", "level", r.Isolation.Level.String())
	}
	c := a.config
	for _, path := range []*string{&c.TokenFile, &c.MetricsTokenFile} {
		if *path != "" {
			*path = "(redacted)"
		}
	}
	env := make([]string, len(c.Env))
	for i, kv := range c.Env {
		name, _, _ := strings.Cut(kv, "=")
		env[i] = name + "=(redacted)"
	}
	c.Env = env
	a.logger.Info("serving", "version", version, "address", a.Address().String(), "config", fmt.Sprintf("%+v", c))
}

// Reload reads the tokens again. Those before stay good for Config.TokenGrace,
// but one of metrics that is gone ends at once. Where there is no usable token
// the old one stays in force.
func (a *Agent) Reload() error {
	if a.config.TokenFile == "" {
		return nil
	}
	token, err := api.ReadToken(a.config.TokenFile)
	if err == nil {
		a.server.Rotate(token, a.config.TokenGrace)
	}
	metrics, errMetrics := api.ReadMetricsToken(a.config.MetricsTokenFile, token)
	if errMetrics == nil {
		a.server.RotateMetrics(metrics, a.config.TokenGrace)
	}
	return errors.Join(err, errMetrics)
}

// Run serves until ctx ends, then drains: running calls get their time, and
// leases if Config.DrainLeases says so, then everything ends. It closes the
// agent.
func (a *Agent) Run(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var background sync.WaitGroup
	background.Go(func() { a.host.ReapStrays(serving) })
	served := make(chan error, 1)
	background.Go(func() { served <- a.server.Serve(serving, a.guard) })

	var err error
	if ready := a.keeper.WaitReady(ctx); ready != nil && ctx.Err() == nil {
		a.logger.Error("a slot could not be opened", "error", ready)
	} else if ctx.Err() == nil {
		a.logger.Info("ready", "slots", a.config.Slots)
	}
	select {
	case <-ctx.Done():
		a.logger.Info("draining", "timeout", a.config.DrainTimeout.String(), "leases", a.config.DrainLeases)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.config.DrainTimeout)
		if a.config.DrainLeases {
			a.keeper.Retire(drain)
		}
		if err := a.keeper.Drain(drain); err != nil {
			a.logger.Warn("drained with force", "error", err)
		}
		cancel()
		stop()
		err = <-served
	case err = <-served:
	}
	stop()
	background.Wait()
	return errors.Join(err, a.close())
}

// close ends what Open has opened, in the opposite order.
func (a *Agent) close() error {
	var errs []error
	if a.keeper != nil {
		errs = append(errs, a.keeper.Close())
	}
	if a.environments != nil {
		errs = append(errs, a.environments.Close())
	}
	if a.host != nil {
		errs = append(errs, a.host.Close())
	}
	if a.registry != nil {
		errs = append(errs, a.registry.Close())
	}
	if a.guard != nil {
		if err := a.guard.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if a.lock != nil {
		errs = append(errs, a.lock.Close())
	}
	return errors.Join(errs...)
}

// closeToOthers takes from everybody else the directories that the scheduler
// has made for all: no slot without a root of its own is kept from a socket in
// them otherwise. It returns those that stay open. One that leads to the data
// directory is left alone, because slots pass through it.
func closeToOthers(dataDir string, dirs ...string) (open []string) {
	for _, dir := range dirs {
		if dir == "" || strings.HasPrefix(dataDir+"/", filepath.Clean(dir)+"/") {
			continue
		}
		st, err := os.Stat(dir)
		if err != nil || st.Mode().Perm()&0o077 == 0 {
			continue // not there, or closed
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			open = append(open, dir)
		}
	}
	return open
}

// lockDirectory refuses a second agent on the same directory.
func lockDirectory(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	// An agent that was just killed lets go of it a moment later.
	deadline := time.Now().Add(2 * time.Second)
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock data directory %s: another agent uses it: %w", dir, err)
	}
	return f, nil
}
