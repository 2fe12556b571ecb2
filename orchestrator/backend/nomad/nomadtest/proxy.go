package nomadtest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Proxy stands before an agent's API and counts what passes.
type Proxy struct {
	URL string

	mu       sync.Mutex // guards what follows
	requests []string   // methods and paths
	open     int
	most     int // connections that were open at once
}

// NewProxy starts a proxy, which the test's end stops.
func NewProxy(t testing.TB, a *Agent) *Proxy {
	t.Helper()
	to, err := url.Parse(a.URL)
	require.NoError(t, err)
	p := &Proxy{}
	pass := httputil.NewSingleHostReverseProxy(to)
	pass.FlushInterval = -1 // events pass at once
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.note(func() { p.requests = append(p.requests, r.Method+" "+r.URL.Path) })
		pass.ServeHTTP(w, r)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			p.note(func() { p.open++; p.most = max(p.most, p.open) })
		case http.StateClosed, http.StateHijacked:
			p.note(func() { p.open-- })
		case http.StateActive, http.StateIdle:
		}
	}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	p.URL = server.URL
	return p
}

func (p *Proxy) note(what func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what()
}

// Take returns the requests since the last Take, as methods and paths, and how
// many connections were open at once at most.
func (p *Proxy) Take() (requests []string, connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	requests, connections = p.requests, p.most
	p.requests, p.most = nil, p.open
	return requests, connections
}
