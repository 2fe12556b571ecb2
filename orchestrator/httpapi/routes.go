package httpapi

import (
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// route is one row of the table of routes.
type route struct {
	method string
	path   string // template
	style  style
	role   role
	handle func(echo.Context) error
	about  about
}

// routes is the whole HTTP surface of the control plane.
func (s *Server) routes() []route {
	all := slices.Concat(s.pageRoutes(), s.trajectoryRoutes(), s.poolRoutes(), s.leaseRoutes(), s.slotRoutes())
	if s.Configs != nil {
		all = append(all, s.configRoutes()...)
	}
	if s.Tools != nil {
		all = append(all, s.toolRoutes()...)
	}
	return all
}

// pageRoutes are for people, and for programs that want to know whether and
// how to talk to us.
func (s *Server) pageRoutes() []route {
	const get = http.MethodGet
	return []route{
		{get, "/health", styleOurs, anybody, s.health, about{text: "Whether the server is there", answer: is[healthAnswer]()}},
		{get, "/livez", styleOurs, anybody, s.health, about{text: "Whether the server is there", answer: is[healthAnswer]()}},
		{get, "/readyz", styleOurs, anybody, s.ready, about{text: "Whether the pools were read", answer: is[healthAnswer]()}},
		{get, "/openapi.json", styleOurs, anybody, s.openapi, about{text: "This description", answer: is[map[string]any]()}},
		{get, "/", styleOurs, anybody, s.dashboard("index.html", typeHTML), about{text: "The dashboard", kind: typeHTML}},
		{get, "/dashboard.js", styleOurs, anybody, s.dashboard("dashboard.js", typeScript), about{text: "The dashboard's script", kind: typeScript}},
		{get, "/dashboard.css", styleOurs, anybody, s.dashboard("dashboard.css", typeCSS), about{text: "The dashboard's style", kind: typeCSS}},
		{get, "/v1/events", styleOurs, trainer, s.watch, about{text: "How all stands, and once a second what has changed", stream: is[liveEvent]()}},
		{get, "/metrics", styleOurs, scraper, s.metricsText, about{text: "Metrics for Prometheus", kind: "text/plain"}},
	}
}

// trajectoryRoutes are the reference's: a trajectory has its slot from its
// first call on.
func (s *Server) trajectoryRoutes() []route {
	const post = http.MethodPost
	return []route{
		{http.MethodGet, "/status", styleOurs, trainer, s.status, about{text: "The pools in numbers", answer: is[statusAnswer]()}},
		{post, "/execute", styleCall, trainer, s.execute, about{text: "Run a tool in the trajectory's slot", body: is[callRequest](), answer: is[callResult]()}},
		{post, "/release", styleOurs, trainer, s.release, about{text: "Give the trajectory's slot back", body: is[releaseRequest](), answer: is[healthAnswer]()}},
		{post, "/artifacts/read", styleArtifacts, trainer, s.readArtifact, about{text: "Read a file", body: is[trajectoryRead](), answer: is[api.ReadAnswer](), or: is[api.ArtifactFailure]()}},
		{post, "/artifacts/list", styleArtifacts, trainer, s.listArtifacts, about{text: "List a tree", body: is[trajectoryList](), answer: is[api.ListAnswer](), or: is[api.ArtifactFailure]()}},
		{post, "/artifacts/archive", styleArtifacts, trainer, s.archiveArtifacts, about{text: "Pack a tree", body: is[trajectoryArchive](), answer: is[api.ArchiveAnswer](), or: is[api.ArtifactFailure]()}},
	}
}

// poolRoutes show pools and containers, and steer them.
func (s *Server) poolRoutes() []route {
	const post = http.MethodPost
	one := is[poolapi.Container]()
	return []route{
		{http.MethodGet, "/v1/pools", styleOurs, trainer, s.pools, about{text: "The pools in numbers", answer: is[poolapi.Pools]()}},
		{http.MethodGet, "/v1/containers", styleOurs, trainer, s.containers, about{text: "The containers and their slots", answer: is[poolapi.Containers]()}},
		{post, "/v1/containers/:id/cordon", styleOurs, operator, s.cordon, about{key: keyAnswers, text: "Keep new leases away, or let them come again", body: is[poolapi.Cordon](), optional: true, answer: one}},
		{post, "/v1/containers/:id/drain", styleOurs, operator, s.drain, about{key: keyAnswers, text: "Stop a container when its leases have ended", body: is[poolapi.Drain](), optional: true, answer: one}},
		{post, "/v1/containers/:id/recycle", styleOurs, operator, s.recycle, about{key: keyAnswers, text: "Drain a container and start another one now", body: is[poolapi.Drain](), optional: true, answer: one}},
	}
}

// leaseRoutes are about leases.
func (s *Server) leaseRoutes() []route {
	const lease = "/v1/leases/:lease"
	which := []string{"template", "trajectory", "container", "label"}
	return []route{
		{http.MethodPost, "/v1/leases", styleOurs, trainer, s.acquire, about{key: keyLeases, text: "Lease a slot", body: is[poolapi.LeaseRequest](), answer: is[poolapi.Lease](), status: []int{http.StatusCreated}}},
		{http.MethodGet, "/v1/leases", styleOurs, trainer, s.listLeases, about{text: "List leases", query: which, answer: is[poolapi.Leases]()}},
		{http.MethodDelete, "/v1/leases", styleOurs, trainer, s.releaseLeases, about{key: keyAnswers, text: "Release the leases that the query names", query: which, answer: is[poolapi.ReleasedLeases]()}},
		{http.MethodGet, lease, styleOurs, trainer, s.getLease, about{text: "Look at a lease", answer: is[poolapi.Lease]()}},
		{http.MethodPut, lease, styleOurs, trainer, s.renewLease, about{text: "Renew a lease", body: is[poolapi.LeaseRenewal](), optional: true, answer: is[poolapi.Lease]()}},
		{http.MethodDelete, lease, styleOurs, trainer, s.releaseLease, about{key: keyAnswers, text: "Release a lease", body: is[poolapi.LeaseRelease](), optional: true, answer: is[poolapi.Released]()}},
		{http.MethodPost, lease + "/reset", styleOurs, trainer, s.resetLease, about{key: keyAnswers, text: "Make the slot pristine and keep it", body: is[struct{}](), optional: true, answer: is[slots.Receipt]()}},
	}
}

// slotRoutes are about what is done in the slot of a lease.
func (s *Server) slotRoutes() []route {
	const lease, execution = "/v1/leases/:lease", "/v1/leases/:lease/executions/:execution"
	const get, post, binary = http.MethodGet, http.MethodPost, echo.MIMEOctetStream
	result, state, event := is[api.Result](), is[api.ExecutionState](), is[streamEvent]()
	return []route{
		{post, lease + "/execute", styleOurs, trainer, s.executeLease, about{key: keyNames, text: "Run a tool", body: is[poolapi.Call](), answer: result, stream: event}},
		{post, lease + "/batch", styleOurs, trainer, s.batchLease, about{key: keyNames, text: "Run several in their order", body: is[poolapi.Batch](), answer: is[poolapi.Results](), stream: event}},
		{get, execution, styleOurs, trainer, s.getExecution, about{text: "An execution's result, or its state", query: []string{"wait_s"}, answer: result, or: state}},
		{http.MethodDelete, execution, styleOurs, trainer, s.cancelExecution, about{text: "Cancel an execution", answer: result, or: state}},
		{post, execution + "/cancel", styleOurs, trainer, s.cancelExecution, about{text: "Cancel an execution", answer: result, or: state}},
		{get, execution + "/stream", styleOurs, trainer, s.streamExecution, about{text: "An execution's events from two offsets on", query: []string{"stdout_offset", "stderr_offset"}, stream: event}},
		{get, execution + "/output", styleOurs, trainer, s.outputExecution, about{text: "Bytes of an execution's output", query: []string{"stream", "offset", "length"}, kind: binary}},
		{get, lease + "/terminal", styleOurs, trainer, s.terminal, about{
			text:  "A terminal in the slot, over a WebSocket: binary messages are what is typed and what is shown; text messages are a TerminalControl from the client, and a TerminalEnd as the last of all",
			query: []string{"cols", "rows", "term", "command", "cwd"}, body: is[api.TerminalControl](), answer: is[api.TerminalEnd](), status: []int{http.StatusSwitchingProtocols},
			socket: true,
		}},
		{post, lease + "/artifacts/read", styleOurs, trainer, s.readLeaseArtifact, about{text: "Read a file", body: is[api.ReadRequest](), answer: is[api.ReadAnswer]()}},
		{post, lease + "/artifacts/list", styleOurs, trainer, s.listLeaseArtifacts, about{text: "List a tree", body: is[api.ListRequest](), answer: is[api.ListAnswer]()}},
		{post, lease + "/artifacts/archive", styleOurs, trainer, s.archiveLeaseArtifacts, about{text: "Pack a tree", body: is[api.ArchiveRequest](), answer: is[api.ArchiveAnswer]()}},
		{get, lease + "/files/*", styleOurs, trainer, s.leaseFile, about{text: "A file's bytes, or a tree's", query: []string{"tar"}, kind: "*/*", status: []int{http.StatusOK, http.StatusPartialContent}}},
		{http.MethodHead, lease + "/files/*", styleOurs, trainer, s.leaseFile, about{text: "A file's size and form", query: []string{"tar"}}},
		{http.MethodPut, lease + "/files/*", styleOurs, trainer, s.leaseFile, about{
			text: "Write a file, or unpack a tree", query: []string{"untar"}, raw: binary,
			answer: is[api.FileAnswer](), or: is[api.UntarAnswer](), status: []int{http.StatusOK, http.StatusCreated},
		}},
	}
}
