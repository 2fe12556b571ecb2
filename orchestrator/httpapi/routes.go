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

		{http.MethodPost, "/execute", styleCall, trainer, s.execute},
		{http.MethodPost, "/release", styleOurs, trainer, s.release},
		{http.MethodPost, "/artifacts/read", styleArtifacts, trainer, s.readArtifact},
		{http.MethodPost, "/artifacts/list", styleArtifacts, trainer, s.listArtifacts},
		{http.MethodPost, "/artifacts/archive", styleArtifacts, trainer, s.archiveArtifacts},
	}
}
