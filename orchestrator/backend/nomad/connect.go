package nomad

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/nomad/api"
)

// idleConn is how long a connection to Nomad is kept that nobody uses. One is
// used all the time for events and one for each pool's lock and variables;
// those that others have opened meanwhile go.
const idleConn = 5 * time.Second

// connect makes the one client that a backend has. It is not Nomad's own, which
// keeps several idle connections for a minute and a half. dial, when it is not
// nil, is how connections are made.
func connect(at api.Config, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*api.Client, error) {
	address, err := url.Parse(at.Address)
	if err != nil {
		return nil, fmt.Errorf("address of nomad: %w", err)
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	switch {
	case dial != nil:
	case address.Scheme == "unix": // the socket that Nomad gives its tasks
		path := address.Path
		at.Address = "http://127.0.0.1"
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
	default:
		dial = dialer.DialContext
	}
	at.HttpClient = &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial, MaxIdleConnsPerHost: 1, IdleConnTimeout: idleConn,
		TLSHandshakeTimeout: 10 * time.Second, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}}
	if err := api.ConfigureTLS(at.HttpClient, at.TLSConfig); err != nil {
		return nil, fmt.Errorf("tls of nomad: %w", err)
	}
	return api.NewClient(&at)
}
