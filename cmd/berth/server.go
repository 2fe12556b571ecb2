package main

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"berth/orchestrator/client"
)

const defaultURL = "http://127.0.0.1:9001"

// address is where the server is.
func (a *app) address() string {
	return strings.TrimSuffix(cmp.Or(a.url, a.getenv("BERTH_URL"), defaultURL), "/")
}

// client makes the client of the server.
func (a *app) client() (*client.Client, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Config{URL: a.address(), Token: token})
	if err != nil {
		return nil, configf("%w: name an address like %s by --url or BERTH_URL", err, defaultURL)
	}
	return c, nil
}

// token finds the bearer token: of --token-file, of BERTH_TOKEN, or the one
// that "berth up" has left for this user.
func (a *app) token() (string, error) {
	path := a.tokenFile
	if path == "" {
		if token := a.getenv("BERTH_TOKEN"); token != "" {
			return token, nil
		}
		if path = a.tokenPath(a.address()); path == "" {
			return "", nil
		}
		if _, err := os.Stat(path); err != nil {
			return "", nil // there is none, or none for us
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", configf("read token: %w: name its file by --token-file", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", configf("read token: %s is empty: write the server's token into it", path)
	}
	return token, nil
}

// tokenPath is where "berth up" leaves the token of the server that it starts
// at the address, which must be one of this machine; "" where there is no
// place for it.
func (a *app) tokenPath(address string) string {
	u, err := url.Parse(address)
	if err != nil || !isLoopback(u.Hostname()) || u.Port() == "" {
		return ""
	}
	dir := a.tokenDir()
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, u.Port())
}

// tokenDir is the directory of those tokens; "" where this user has none.
func (a *app) tokenDir() string {
	dir := a.getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home := a.getenv("HOME")
		if !filepath.IsAbs(home) {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "berth", "tokens")
}

// leaveToken writes the token where the commands of this user find it.
func (a *app) leaveToken(address, token string) (path string, err error) {
	if path = a.tokenPath(address); path == "" {
		return "", configf("no place for a token: set HOME, or name a file by --token-file")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", configf("keep token: %w", err)
	}
	// A new file, so that nobody has the old one open.
	draft, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return "", configf("keep token: %w", err)
	}
	_, err = fmt.Fprintln(draft, token)
	err = cmp.Or(err, draft.Close(), os.Rename(draft.Name(), path))
	if err != nil {
		return "", configf("keep token: %w", err)
	}
	return path, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
