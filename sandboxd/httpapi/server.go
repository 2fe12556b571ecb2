package httpapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/sandboxd/httpkit"
	"berth/sandboxd/terminal"
	"berth/slots"
)

// Executions takes calls. *keeper.Keeper is one.
type Executions interface {
	// Submit queues the call and returns at once; a call that is refused comes
	// back as an execution that has ended.
	Submit(ctx context.Context, call api.Call) *execution.Execution
	// Follow is Submit for who reads the output while the call runs.
	Follow(ctx context.Context, call api.Call) *execution.Execution
	// Run is Submit, and may return only once the call has ended.
	Run(ctx context.Context, call api.Call) *execution.Execution
}

// Registry finds executions. *execution.Registry is one.
type Registry interface {
	Get(id string) (*execution.Execution, bool)
	JournalErr() error
}

// Slots shows and resets slots. *keeper.Keeper is one.
type Slots interface {
	Ready() bool
	Health() api.Health
	Slots() []api.Slot
	Reset(ctx context.Context, slotID string, token *uint64) (slots.Receipt, error)
}

// Leases gives slots to trajectories. *keeper.Keeper is one.
type Leases interface {
	Acquire(slotID string, want api.LeaseRequest) (slots.Lease, error)
	AcquireAny(want api.LeaseRequest) (slots.Lease, error)
	Renew(slotID string, want api.LeaseRenewal) (slots.Lease, error)
	Release(ctx context.Context, slotID string, token uint64, reset bool) (slots.Receipt, error)
	Leases() []slots.Lease
}

// Files runs workspace operations as a slot. *keeper.Keeper is one.
type Files interface {
	// Do writes the operation's output to out, then sets reply. An error of in
	// other than io.EOF fails the operation without effect.
	Do(ctx context.Context, slotID string, token *uint64, op string, args, reply any, in io.Reader, out io.Writer) error
}

// Environments builds and shows environments. *environment.Store is one.
type Environments interface {
	// Ensure calls progress, which may be nil, with each line of a build, and
	// not after it has returned.
	Ensure(ctx context.Context, spec api.EnvironmentSpec, recreate bool, progress func(line string)) (api.EnvironmentResult, error)
	List() api.Environments
	Delete(key string) error
}

// Deps are the collaborators of a Server. All but Logger are required.
type Deps struct {
	Logger     hclog.Logger // nil discards
	Metrics    *Metrics
	Executions Executions
	Registry   Registry
	Slots      Slots
	Leases     Leases
	Files      Files
	Terminals  Terminals

	Environments Environments
}

// Config is how a Server behaves. Zero fields mean the default.
type Config struct {
	Token        string // that requests have to bear; "" asks for none
	MetricsToken string // that those for metrics may bear instead, and no others; "" is none

	MaxBody     int64 // bytes of a JSON request; default 64 MiB
	MaxArtifact int64 // bytes that a max_bytes can ask for; default 64 MiB
	MaxUpload   int64 // bytes of a file or tree that is put; default 16 GiB
	MaxBatch    int   // calls of one batch; default 10000

	MaxConns     int // connections that serve every route; default 1024
	ReserveConns int // more, that serve the routes without token; default 32

	HeaderTimeout   time.Duration // for a request's headers; default 10 s
	IdleTimeout     time.Duration // between two requests; default 2 min
	Stall           time.Duration // without a byte of body or answer; default 30 s
	KeepAlive       time.Duration // between two signs of life of a stream; default 15 s
	ShutdownTimeout time.Duration // for requests under way when Serve is stopped; default 10 s
}

func (c Config) withDefaults() Config {
	c.MaxBody = cmp.Or(c.MaxBody, 64<<20)
	c.MaxArtifact = cmp.Or(c.MaxArtifact, 64<<20)
	c.MaxUpload = cmp.Or(c.MaxUpload, 16<<30)
	c.MaxBatch = cmp.Or(c.MaxBatch, 10_000)
	c.MaxConns = cmp.Or(c.MaxConns, 1024)
	c.ReserveConns = cmp.Or(c.ReserveConns, 32)
	c.HeaderTimeout = cmp.Or(c.HeaderTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	c.Stall = cmp.Or(c.Stall, 30*time.Second)
	c.KeepAlive = cmp.Or(c.KeepAlive, 15*time.Second)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, 10*time.Second)
	return c
}

// maxHeader bounds a request's headers, in bytes.
const maxHeader = 32 << 10

var errStopping = slots.Errorf(slots.KindInterrupted, "container is shutting down").WithExecuted(slots.ExecutedMaybe)

// Server answers the requests of one container. It is an http.Handler.
type Server struct {
	Deps
	config   Config
	logger   hclog.Logger
	tokens   atomic.Pointer[tokens] // nil: none is asked for
	scraped  atomic.Pointer[tokens] // those of metrics; nil: there is none
	echo     *echo.Echo
	conns    *connTable
	sessions terminal.Group // terminals, whose connections are not the http server's any more
	strange  *routeMetrics  // of requests that no route is for
}

// New makes a Server. It starts nothing.
func New(deps Deps, config Config) *Server {
	if deps.Metrics == nil || deps.Executions == nil || deps.Registry == nil || deps.Slots == nil || deps.Leases == nil || deps.Files == nil || deps.Terminals == nil || deps.Environments == nil {
		panic("httpapi.New needs every collaborator but Logger")
	}
	if deps.Logger == nil {
		deps.Logger = hclog.NewNullLogger()
	}
	config = config.withDefaults()
	s := &Server{
		Deps: deps, config: config, logger: deps.Logger.Named("http"), echo: echo.New(),
		conns: newConnTable(config.MaxConns, config.ReserveConns, config.Stall),
	}
	if config.Token != "" {
		s.tokens.Store(&tokens{now: sha256.Sum256([]byte(config.Token))})
	}
	s.RotateMetrics(config.MetricsToken, 0)
	s.Metrics.watch(s.Slots, s.conns)
	s.Metrics.watchEnvironments(s.Environments)
	s.Metrics.watchJournal(s.Registry)
	s.strange = s.Metrics.route("any", other)
	s.echo.HTTPErrorHandler = s.noRoute
	for _, r := range s.routes() {
		s.echo.Add(r.method, r.path, s.handler(r))
	}
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// Serve answers requests on ln, which it closes, until ctx ends. Then it
// takes no more, gives those under way Config.ShutdownTimeout, lets streams
// send their final event, and returns nil. Work is drained by the keeper;
// a stop that drains it first meets no request under way.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: s.config.HeaderTimeout,
		IdleTimeout:       s.config.IdleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
		ConnContext:       withConn,
		ConnState:         s.conns.watch,
	}
	server.RegisterOnShutdown(s.conns.closeWaiting)
	defer s.sessions.Await()
	return httpkit.Serve(ctx, server, &listener{ln, s.conns}, httpkit.Stop{Within: s.config.ShutdownTimeout, Cause: errStopping})
}

// handler is what every route has around it: the token, the reserve, panics,
// failures and metrics.
func (s *Server) handler(r route) echo.HandlerFunc {
	seen := s.Metrics.route(r.method, r.path)
	return func(c echo.Context) error {
		start := time.Now()
		defer func() { seen.observe(c.Response().Status, time.Since(start)) }()
		defer s.recovered(c, r.style)
		s.watchBody(c.Request())
		err := s.admit(c, r.open)
		if err == nil {
			err = r.handle(c)
		}
		if err != nil {
			s.refuse(c, r.style, err)
		}
		return nil
	}
}

// admit refuses a request that lacks the token or came over the cap.
func (s *Server) admit(c echo.Context, open access) error {
	if open == everybody {
		return nil
	}
	r := c.Request()
	conn := connOf(r.Context())
	caller, err := s.authorise(r, open)
	if err != nil {
		return err
	}
	if conn == nil {
		return nil
	}
	if conn.reserved {
		c.Response().Header().Set("Connection", "close")
		return slots.Errorf(slots.KindQueueTimeout, "too many connections: at most %d", s.config.MaxConns)
	}
	if caller { // who may only look makes room for those who work
		conn.trusted.Store(true)
	}
	return nil
}

// recovered turns a panic into an internal error. An answer that has begun
// is cut off, so that nobody takes it for a whole one.
func (s *Server) recovered(c echo.Context, st style) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	s.panicked(c, p)
	if c.Response().Committed {
		panic(http.ErrAbortHandler)
	}
	// The panic is on record, so this does not go through refuse.
	s.write(c, st, errPanic)
}

var errPanic = slots.Errorf(slots.KindInternal, "internal error")

// noRoute answers what the router refuses.
func (s *Server) noRoute(err error, c echo.Context) {
	defer func(start time.Time) { s.strange.observe(c.Response().Status, time.Since(start)) }(time.Now())
	s.watchBody(c.Request())
	st := styleOf(c.Request().URL.Path)
	if refused := s.admit(c, callers); refused != nil {
		s.refuse(c, st, refused)
		return
	}
	if h, ok := errors.AsType[*echo.HTTPError](err); ok && h.Code == http.StatusMethodNotAllowed {
		s.refuse(c, st, &httpkit.StatusError{Status: h.Code, Err: slots.Errorf(slots.KindBadRequest, "method %.10s is not allowed here", c.Request().Method)})
		return
	}
	s.refuse(c, st, slots.Errorf(slots.KindNotFound, "no such route"))
}
