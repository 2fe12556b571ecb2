package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// route is one row of the table of routes.
type route struct {
	method string
	path   string // template, also its label in metrics
	style  style
	free   bool // needs no token
	handle func(echo.Context) error
}

// routes is the whole HTTP surface of a container.
func (s *Server) routes() []route {
	return []route{
		{http.MethodGet, "/health", styleOurs, true, s.health},
		{http.MethodGet, "/livez", styleOurs, true, s.live},
		{http.MethodGet, "/readyz", styleOurs, true, s.ready},
		{http.MethodGet, "/metrics", styleOurs, false, s.metricsText},
		{http.MethodGet, "/slots", styleOurs, false, s.listSlots},

		{http.MethodPost, "/execute", styleCall, false, s.execute},
		{http.MethodPost, "/batch", styleCall, false, s.batch},
		{http.MethodPost, "/reset", styleCall, false, s.reset},
		{http.MethodPost, "/artifacts/read", styleArtifacts, false, s.readArtifact},
		{http.MethodPost, "/artifacts/list", styleArtifacts, false, s.listArtifacts},
		{http.MethodPost, "/artifacts/archive", styleArtifacts, false, s.archiveArtifacts},

		{http.MethodGet, "/v1/executions/:id", styleOurs, false, s.execution},
		{http.MethodPost, "/v1/executions/:id/cancel", styleOurs, false, s.cancel},
		{http.MethodGet, "/v1/executions/:id/stream", styleOurs, false, s.resume},
		{http.MethodGet, "/v1/executions/:id/output", styleOurs, false, s.output},

		{http.MethodPost, "/v1/slots/:slot/lease", styleOurs, false, s.acquire},
		{http.MethodPut, "/v1/slots/:slot/lease", styleOurs, false, s.renew},
		{http.MethodDelete, "/v1/slots/:slot/lease", styleOurs, false, s.release},
		{http.MethodGet, "/v1/slots/:slot/terminal", styleOurs, false, s.terminal},
		{http.MethodPost, "/v1/leases", styleOurs, false, s.acquireAny},
		{http.MethodGet, "/v1/leases", styleOurs, false, s.listLeases},

		{http.MethodGet, "/v1/environments", styleOurs, false, s.listEnvironments},
		{http.MethodPut, "/v1/environments/:key", styleOurs, false, s.putEnvironment},
		{http.MethodDelete, "/v1/environments/:key", styleOurs, false, s.deleteEnvironment},

		{http.MethodGet, "/slots/:slot/files/*", styleOurs, false, s.getFile},
		{http.MethodHead, "/slots/:slot/files/*", styleOurs, false, s.getFile},
		{http.MethodPut, "/slots/:slot/files/*", styleOurs, false, s.putFile},
	}
}
