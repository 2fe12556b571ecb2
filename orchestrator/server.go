package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/orchestrator/backend"
	"berth/orchestrator/calls"
	"berth/orchestrator/config"
	"berth/orchestrator/function"
	"berth/orchestrator/httpapi"
	"berth/orchestrator/pool"
	"berth/orchestrator/recent"
	"berth/sandboxd/client"
	"berth/sandboxd/listen"
)

// Server is one orchestrator, opened and not yet serving.
type Server struct {
	config   Config
	logger   hclog.Logger
	listener net.Listener
	backend  fleet
	pools    *pool.Pools
	calls    *calls.Carrier
	configs  *config.Store
	hosts    *hosts // nil: there are no local sandboxes
	tools    *function.Runner
	http     *httpapi.Server
}

// Open listens, adopts the containers that are there, and begins to start
// those that are wanted.
func Open(ctx context.Context, c Config, version string, logger hclog.Logger) (_ *Server, err error) {
	s := &Server{config: c, logger: logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	opens, err := c.readTokens()
	if err != nil {
		return nil, impossible(ctx, err)
	}
	if s.listener, err = listen.TCP(ctx, c.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	s.announce(version)
	if err := c.makeHostDirectories(); err != nil {
		return nil, impossible(ctx, err)
	}
	if s.configs, err = c.openConfigs(ctx); err != nil {
		return nil, err
	}
	if s.backend, err = c.openBackend(ctx, logger); err != nil {
		return nil, err
	}
	metrics := httpapi.NewMetrics()
	s.pools, err = pool.New(s.backend, connect, pool.Config{Templates: c.Templates, Log: logger, Observer: metrics})
	if err != nil {
		return nil, fmt.Errorf("make pools: %w", err)
	}
	seen := recent.New()
	s.calls = calls.New(s.pools, calls.Config{
		Template: c.Templates[0].Name, Idle: c.TrajectoryIdle, Wait: c.TrajectoryWait, Logger: logger, Recent: seen,
	})
	if c.LocalSlots > 0 {
		if s.hosts, err = c.openHosts(ctx, logger); err != nil {
			if c.Backend == backendLocal {
				return nil, err
			}
			logger.Warn("no local sandboxes: tools of privileged organizations are refused", "error", err)
			s.hosts, err = nil, nil
		}
	}
	s.tools = s.newTools()

	s.http = httpapi.New(httpapi.Deps{Logger: logger, Metrics: metrics, Pools: s.pools, Calls: s.calls, Recent: seen, Configs: s.configs, Tools: s.tools}, httpapi.Config{ //nolint:contextcheck // requests have contexts of their own
		Token: opens.Token, OperatorToken: opens.OperatorToken, Bound: opens.Bound, MetricsToken: opens.MetricsToken,
		Template: c.Templates[0].Name, MaxBody: c.MaxBody, MaxConns: c.MaxConns, DrainTimeout: c.DrainTimeout,
	})
	return s, nil
}

// impossible makes the error an ErrImpossible, unless it may pass by itself:
// then another try is worth it.
func impossible(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	for _, passing := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR,
		syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ETIMEDOUT, syscall.ESTALE,
	} {
		if errors.Is(err, passing) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrImpossible, err)
}

func connect(c backend.Container) (pool.Remote, error) {
	return client.New(client.Config{URL: c.URL, Token: c.Token})
}

// Address is where the orchestrator listens.
func (s *Server) Address() net.Addr { return s.listener.Addr() }

// announce says once what is in force.
func (s *Server) announce(version string) {
	if s.config.TokenFile == "" {
		s.logger.Warn("no token: whoever reaches the address, slots with a network among them, may use every slot", "address", s.Address().String())
	}
	s.logger.Info("serving", "version", version, "address", s.Address().String(), "config", s.config.String())
}

// String describes the Config without what may be secret: the values of slots'
// variables and of sandboxd's further arguments.
func (c Config) String() string {
	const redacted = "(redacted)"
	for _, path := range []*string{&c.TokenFile, &c.OperatorTokenFile, &c.BoundTokenFile, &c.MetricsTokenFile, &c.ConfigKeys} {
		if *path != "" {
			*path = redacted
		}
	}
	args := make([]string, len(c.SandboxdArgs))
	for i, arg := range c.SandboxdArgs {
		name, _, _ := strings.Cut(arg, "=")
		if !strings.HasPrefix(name, "-") {
			name = redacted
		}
		args[i] = name
	}
	c.SandboxdArgs = args
	templates := make([]pool.Template, len(c.Templates))
	for i, t := range c.Templates {
		env := make(map[string]string, len(t.Env))
		for name := range t.Env {
			env[name] = redacted
		}
		t.Env = env
		templates[i] = t
	}
	c.Templates = templates
	type plain Config // has no String
	return fmt.Sprintf("%+v", plain(c))
}

// Run serves until ctx ends, then drains: no more calls are taken, running
// ones get their time, then everything ends. It closes the Server.
func (s *Server) Run(ctx context.Context) error {
	lasting := context.WithoutCancel(ctx)
	serving, stop := context.WithCancel(lasting)
	defer stop()
	renewing, rest := context.WithCancel(lasting)
	defer rest()
	var background sync.WaitGroup
	background.Go(func() { s.calls.Run(renewing) })
	served := make(chan error, 1)
	background.Go(func() { served <- s.http.Serve(serving, s.listener) })
	background.Go(func() {
		if err := s.pools.Ready(serving); err == nil {
			s.logger.Info("ready")
		}
	})
	var err error
	select {
	case <-ctx.Done():
		s.logger.Info("draining", "timeout", s.config.DrainTimeout.String())
		stop()
		err = <-served
	case err = <-served:
	}
	stop()
	rest()
	background.Wait()
	return errors.Join(err, s.Close())
}

// lastCalls is how long calls that nobody waits for any more get at the end.
const lastCalls = time.Second

// Close ends what Open has opened, in the opposite order. Run does it as well.
func (s *Server) Close() error {
	var errs []error
	if s.tools != nil {
		errs = append(errs, s.tools.Close())
	}
	if s.hosts != nil {
		errs = append(errs, s.hosts.close())
	}
	if s.calls != nil {
		ctx, cancel := context.WithTimeout(context.Background(), lastCalls)
		if err := s.calls.Close(ctx); err != nil {
			s.logger.Warn("drained with force", "error", err)
		}
		cancel()
	}
	if s.pools != nil {
		errs = append(errs, s.pools.Close())
	}
	if s.backend != nil {
		errs = append(errs, s.backend.Close())
	}
	if s.configs != nil {
		errs = append(errs, s.configs.Close())
	}
	if s.listener != nil {
		if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
