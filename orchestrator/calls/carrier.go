package calls

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/orchestrator/backend"
	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/orchestrator/recent"
	"berth/sandboxd/client"
)

// Config is how a Carrier behaves. Zero fields mean the default.
type Config struct {
	Template string        // of the slots that trajectories get; required
	Idle     time.Duration // after which a trajectory that does not call loses its slot; default 30 minutes
	Wait     time.Duration // for a free slot, at the first call; default 5 minutes
	Dispatch dispatch.Config
	Logger   hclog.Logger  // default: none
	Recent   *recent.Calls // is told of every call; nil: nobody is

	// Connect makes the client of a container. nil: client.New, with PassOn.
	Connect func(backend.Container) (*client.Client, error)
}

// Carrier carries calls. All methods may be called at once.
type Carrier struct {
	pools  *pool.Pools
	config Config
	log    hclog.Logger
	router *dispatch.Router
	closed chan struct{}
	once   sync.Once
	links  links
	uses   uses
	tasks  sync.WaitGroup
}

// New makes a Carrier. Run renews its leases; Close ends it.
func New(pools *pool.Pools, config Config) *Carrier {
	config.Idle = cmp.Or(config.Idle, 30*time.Minute)
	config.Wait = cmp.Or(config.Wait, 5*time.Minute)
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	if config.Connect == nil {
		config.Connect = connect
	}
	return &Carrier{
		pools: pools, config: config, log: config.Logger.Named("calls"), router: dispatch.NewRouter(config.Dispatch),
		closed: make(chan struct{}), links: links{byID: map[string]*link{}},
		uses: uses{byRef: map[pool.Ref]*use{}, doubts: map[string]time.Time{}, hurry: make(chan struct{}, 1)},
	}
}

// retries is how often a call is sent again that a container does not answer:
// for as long as it takes one that crashed to be back, with its leases and what
// has become of its executions.
const retries = 4

func connect(c backend.Container) (*client.Client, error) {
	return client.New(client.Config{URL: c.URL, Token: c.Token, Retries: retries, PassOn: true})
}

// Close takes no more calls and waits for the answers of those that it has;
// when ctx ends first, it ends them.
func (c *Carrier) Close(ctx context.Context) error {
	err := c.router.Close(ctx)
	c.once.Do(func() { close(c.closed) })
	c.tasks.Wait()
	return err
}

// Stats returns the numbers of every container by its ID.
func (c *Carrier) Stats() map[string]dispatch.Stats { return c.router.Stats() }
