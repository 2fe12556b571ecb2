package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// route is one row of the table of routes.
type route struct {
	method string
	path   string // template
	style  style
	role   role
	handle func(echo.Context) error
}

// routes is the whole HTTP surface of the control plane.
func (s *Server) routes() []route {
	return []route{
		{http.MethodGet, "/health", styleOurs, anybody, s.health},
		{http.MethodGet, "/livez", styleOurs, anybody, s.health},
		{http.MethodGet, "/readyz", styleOurs, anybody, s.ready},
		{http.MethodGet, "/status", styleOurs, trainer, s.status},

		{http.MethodGet, "/", styleOurs, anybody, s.dashboard("index.html", "text/html; charset=utf-8")},
		{http.MethodGet, "/dashboard.js", styleOurs, anybody, s.dashboard("dashboard.js", "text/javascript; charset=utf-8")},
		{http.MethodGet, "/dashboard.css", styleOurs, anybody, s.dashboard("dashboard.css", "text/css; charset=utf-8")},
		{http.MethodGet, "/v1/events", styleOurs, trainer, s.watch},

		{http.MethodPost, "/execute", styleCall, trainer, s.execute},
		{http.MethodPost, "/release", styleOurs, trainer, s.release},
		{http.MethodPost, "/artifacts/read", styleArtifacts, trainer, s.readArtifact},
		{http.MethodPost, "/artifacts/list", styleArtifacts, trainer, s.listArtifacts},
		{http.MethodPost, "/artifacts/archive", styleArtifacts, trainer, s.archiveArtifacts},

		{http.MethodGet, "/metrics", styleOurs, trainer, s.metricsText},
		{http.MethodGet, "/v1/pools", styleOurs, trainer, s.pools},
		{http.MethodGet, "/v1/containers", styleOurs, trainer, s.containers},
		{http.MethodPost, "/v1/containers/:id/cordon", styleOurs, operator, s.cordon},
		{http.MethodPost, "/v1/containers/:id/drain", styleOurs, operator, s.drain},
		{http.MethodPost, "/v1/containers/:id/recycle", styleOurs, operator, s.recycle},

		{http.MethodPost, "/v1/leases", styleOurs, trainer, s.acquire},
		{http.MethodGet, "/v1/leases", styleOurs, trainer, s.listLeases},
		{http.MethodDelete, "/v1/leases", styleOurs, trainer, s.releaseLeases},
		{http.MethodGet, "/v1/leases/:lease", styleOurs, trainer, s.getLease},
		{http.MethodPut, "/v1/leases/:lease", styleOurs, trainer, s.renewLease},
		{http.MethodDelete, "/v1/leases/:lease", styleOurs, trainer, s.releaseLease},
		{http.MethodPost, "/v1/leases/:lease/execute", styleOurs, trainer, s.executeLease},
		{http.MethodPost, "/v1/leases/:lease/batch", styleOurs, trainer, s.batchLease},
		{http.MethodGet, "/v1/leases/:lease/executions/:execution", styleOurs, trainer, s.getExecution},
		{http.MethodDelete, "/v1/leases/:lease/executions/:execution", styleOurs, trainer, s.cancelExecution},
		{http.MethodGet, "/v1/leases/:lease/executions/:execution/stream", styleOurs, trainer, s.streamExecution},
		{http.MethodGet, "/v1/leases/:lease/executions/:execution/output", styleOurs, trainer, s.outputExecution},
		{http.MethodPost, "/v1/leases/:lease/executions/:execution/cancel", styleOurs, trainer, s.cancelExecution},
		{http.MethodPost, "/v1/leases/:lease/reset", styleOurs, trainer, s.resetLease},
		{http.MethodPost, "/v1/leases/:lease/artifacts/read", styleOurs, trainer, s.readLeaseArtifact},
		{http.MethodPost, "/v1/leases/:lease/artifacts/list", styleOurs, trainer, s.listLeaseArtifacts},
		{http.MethodPost, "/v1/leases/:lease/artifacts/archive", styleOurs, trainer, s.archiveLeaseArtifacts},
		{http.MethodGet, "/v1/leases/:lease/files/*", styleOurs, trainer, s.leaseFile},
		{http.MethodHead, "/v1/leases/:lease/files/*", styleOurs, trainer, s.leaseFile},
		{http.MethodPut, "/v1/leases/:lease/files/*", styleOurs, trainer, s.leaseFile},
	}
}
