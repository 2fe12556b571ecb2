package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/labstack/echo/v4"
	"golang.org/x/net/netutil"

	"berth/orchestrator/calls"
	"berth/orchestrator/config"
	"berth/orchestrator/pool"
	"berth/orchestrator/recent"
	"berth/sandboxd/httpkit"
	"berth/sandboxd/terminal"
	"berth/slots"
)

// Deps are the collaborators of a Server. All but Logger, Recent, Configs and
// Tools are required.
type Deps struct {
	Logger  hclog.Logger  // nil discards
	Recent  *recent.Calls // what Calls tells of; nil: the dashboard shows no calls
	Metrics *Metrics
	Pools   *pool.Pools
	Calls   *calls.Carrier
	Configs *config.Store // nil: there are no routes about function tools
	Tools   Tools         // runs them; nil: no route does
}

// Config is how a Server behaves. Zero fields mean the default.
type Config struct {
	Token         string       // of trainers; "" asks nobody for one
	OperatorToken string       // of operators, who may do all that trainers may; "": trainers are operators
	Bound         []BoundToken // more tokens; they need a Token
	MetricsToken  string       // opens the metrics and nothing else, "" is none; it needs a Token
	Template      string       // of leases whose request names none

	MaxBody  int64 // bytes of a JSON request; default 64 MiB
	MaxConns int   // connections that are served at once, further ones wait; default 8192

	HeaderTimeout time.Duration // for a request's headers; default 10 s
	IdleTimeout   time.Duration // between two requests; default 2 min
	Stall         time.Duration // without a byte of body or answer; default 30 s
	DrainTimeout  time.Duration // for requests under way when Serve is stopped; default 30 s
}

// BoundToken is a token that is good for the function tools of the
// organisations that it names, and for nothing else. The other tokens may name
// any organisation.
type BoundToken struct {
	Token         string
	Organizations []string
}

func (c Config) withDefaults() Config {
	c.MaxBody = cmp.Or(c.MaxBody, 64<<20)
	c.MaxConns = cmp.Or(c.MaxConns, 8192)
	c.HeaderTimeout = cmp.Or(c.HeaderTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	c.Stall = cmp.Or(c.Stall, 30*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	return c
}

// maxHeader bounds a request's headers, in bytes.
const maxHeader = 32 << 10

var errStopping = slots.Errorf(slots.KindDraining, "orchestrator is shutting down")

// Server answers the requests of trainers and operators. It is an
// http.Handler.
type Server struct {
	Deps
	config   Config
	logger   hclog.Logger
	tokens   tokens
	echo     *echo.Echo
	stopping atomic.Bool
	ending   chan struct{} // closed when the server is to stop
	end      func()        // closes it
	viewers  viewers
	sessions terminal.Group // terminals, whose connections are not the http server's any more
	answers  answers

	forwarder *http.Client
	strange   *routeMetrics // of requests that no route is for

	description func() ([]byte, error) // of the routes, made when it is first asked for

	requests, failures atomic.Uint64 // of tool calls by trajectory
}

// New makes a Server. It starts nothing.
func New(deps Deps, c Config) *Server {
	if deps.Metrics == nil || deps.Pools == nil || deps.Calls == nil {
		panic("httpapi.New needs every collaborator but Logger")
	}
	if deps.Logger == nil {
		deps.Logger = hclog.NewNullLogger()
	}
	c = c.withDefaults()
	s := &Server{
		Deps: deps, config: c, logger: deps.Logger.Named("http"), echo: echo.New(),
		tokens: newTokens(c), forwarder: newForwarder(), ending: make(chan struct{}),
	}
	s.end = sync.OnceFunc(func() { close(s.ending) })
	s.viewers.s, s.answers.byKey = s, map[string]*kept{}
	s.Metrics.registry.MustRegister(newCollector(s.Pools, s.Calls))
	s.strange = s.Metrics.route("any", "other")
	s.echo.HTTPErrorHandler = s.noRoute
	s.description = sync.OnceValues(func() ([]byte, error) { return describe(s.routes()) })
	for _, r := range s.routes() {
		s.echo.Add(r.method, r.path, s.handler(r))
	}
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// Serve answers requests on ln, which it closes, until ctx ends. Then it takes
// no more, refuses those that wait for a slot, gives the others that are under
// way Config.DrainTimeout, tells the rest that it is over, and returns nil.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: s.config.HeaderTimeout,
		IdleTimeout:       s.config.IdleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	defer s.forwarder.CloseIdleConnections()
	defer s.sessions.Await()
	return httpkit.Serve(ctx, server, netutil.LimitListener(ln, s.config.MaxConns), httpkit.Stop{
		Begin: func() {
			s.stopping.Store(true)
			s.end()
			// A slot may take longer to come than the stop may.
			s.Pools.EndQueues()
			if s.Tools != nil {
				s.Tools.EndQueues()
			}
		},
		Within: s.config.DrainTimeout, Cause: errStopping,
	})
}

// handler is what every route has around it: deadlines, the token, panics,
// failures and metrics.
func (s *Server) handler(r route) echo.HandlerFunc {
	seen, handle := s.Metrics.route(r.method, r.path), r.handle
	if r.about.key == keyAnswers || r.about.key == keyLeases {
		handle = s.once(r)
	}
	return func(c echo.Context) error {
		start := time.Now()
		defer func() { seen.observe(c.Response().Status, time.Since(start)) }()
		defer s.recovered(c, r.style)
		s.begin(c)
		who, err := s.tokens.admit(c.Request(), r.role)
		if err == nil {
			err = who.admit(c, r)
		}
		if err == nil {
			err = handle(c)
		}
		if err != nil {
			s.refuse(c, r.style, err)
		}
		return nil
	}
}

// begin clears what the last request on the connection left, and bounds how
// long the server waits for a body that nobody reads: it does so before it
// answers.
func (s *Server) begin(c echo.Context) {
	control := http.NewResponseController(c.Response().Writer)
	// A connection that takes no deadline is closed, or a test's recorder.
	_ = control.SetWriteDeadline(time.Time{})
	if c.Request().ContentLength != 0 {
		_ = control.SetReadDeadline(time.Now().Add(s.config.Stall))
	}
}

// recovered turns a panic into an internal error. An answer that has begun is
// cut off, so that nobody takes it for a whole one.
func (s *Server) recovered(c echo.Context, st style) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	s.logger.Error("handler panicked", "route", c.Path(), "error", fmt.Sprint(p), "stack", string(debug.Stack()))
	if c.Response().Committed {
		panic(http.ErrAbortHandler)
	}
	s.write(c, st, errPanic)
}

var errPanic = slots.Errorf(slots.KindInternal, "internal error")

// noRoute answers what the router refuses.
func (s *Server) noRoute(err error, c echo.Context) {
	defer func(start time.Time) { s.strange.observe(c.Response().Status, time.Since(start)) }(time.Now())
	s.begin(c)
	st := styleOf(c.Request().URL.Path)
	if _, refused := s.tokens.admit(c.Request(), trainer); refused != nil {
		s.refuse(c, st, refused)
		return
	}
	if h, ok := errors.AsType[*echo.HTTPError](err); ok && h.Code == http.StatusMethodNotAllowed {
		s.refuse(c, st, &httpkit.StatusError{Status: h.Code, Err: slots.Errorf(slots.KindBadRequest, "method %.10s is not allowed here", c.Request().Method)})
		return
	}
	s.refuse(c, st, slots.Errorf(slots.KindNotFound, "no such route"))
}
