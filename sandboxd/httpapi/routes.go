package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// access is whom a route serves.
type access int

const (
	callers   access = iota // who bears the token
	scrapers                // those, and who bears the token of metrics
	everybody               // nobody is asked
)

// route is one row of the table of routes.
type route struct {
	method string
	path   string // template, also its label in metrics
	style  style
	open   access
	handle func(echo.Context) error
}

// routes is the whole HTTP surface of a container.
func (s *Server) routes() []route {
	return []route{
		{http.MethodGet, "/health", styleOurs, everybody, s.health},
		{http.MethodGet, "/livez", styleOurs, everybody, s.live},
		{http.MethodGet, "/readyz", styleOurs, everybody, s.ready},
		{http.MethodGet, "/metrics", styleOurs, scrapers, s.metricsText},
		{http.MethodGet, "/slots", styleOurs, callers, s.listSlots},

		{http.MethodPost, "/execute", styleCall, callers, s.execute},
		{http.MethodPost, "/batch", styleCall, callers, s.batch},
		{http.MethodPost, "/reset", styleCall, callers, s.reset},
		{http.MethodPost, "/artifacts/read", styleArtifacts, callers, s.readArtifact},
		{http.MethodPost, "/artifacts/list", styleArtifacts, callers, s.listArtifacts},
		{http.MethodPost, "/artifacts/archive", styleArtifacts, callers, s.archiveArtifacts},

		{http.MethodGet, "/v1/executions/:id", styleOurs, callers, s.execution},
		{http.MethodPost, "/v1/executions/:id/cancel", styleOurs, callers, s.cancel},
		{http.MethodGet, "/v1/executions/:id/stream", styleOurs, callers, s.resume},
		{http.MethodGet, "/v1/executions/:id/output", styleOurs, callers, s.output},

		{http.MethodPost, "/v1/slots/:slot/lease", styleOurs, callers, s.acquire},
		{http.MethodPut, "/v1/slots/:slot/lease", styleOurs, callers, s.renew},
		{http.MethodDelete, "/v1/slots/:slot/lease", styleOurs, callers, s.release},
		{http.MethodGet, "/v1/slots/:slot/terminal", styleOurs, callers, s.terminal},
		{http.MethodPost, "/v1/leases", styleOurs, callers, s.acquireAny},
		{http.MethodGet, "/v1/leases", styleOurs, callers, s.listLeases},

		{http.MethodGet, "/v1/environments", styleOurs, callers, s.listEnvironments},
		{http.MethodPut, "/v1/environments/:key", styleOurs, callers, s.putEnvironment},
		{http.MethodDelete, "/v1/environments/:key", styleOurs, callers, s.deleteEnvironment},

		{http.MethodGet, "/slots/:slot/files/*", styleOurs, callers, s.getFile},
		{http.MethodHead, "/slots/:slot/files/*", styleOurs, callers, s.getFile},
		{http.MethodPut, "/slots/:slot/files/*", styleOurs, callers, s.putFile},
	}
}
