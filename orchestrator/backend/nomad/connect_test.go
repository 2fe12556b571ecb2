package nomad_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad"
	"berth/orchestrator/backend/nomad/operate"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes one, whose certificate is in a file: ca.pem of dir.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign makes a certificate and its key, in NAME.pem and NAME-key.pem of dir.
func (a *authority) sign(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	require.NoError(a.t, err)
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: raw}, name + "-key.pem": {Type: "PRIVATE KEY", Bytes: rawKey},
	} {
		require.NoError(a.t, os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600))
	}
	signed, err := x509.ParseCertificate(raw)
	require.NoError(a.t, err)
	return signed, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// nomadName is what Nomad's own certificates say, whatever the address is.
const nomadName = "server.global.nomad"

// guarded is a double behind TLS, which answers only who has a certificate of
// the authority, and notes who asks.
type guarded struct {
	*double
	mu    sync.Mutex // guards asked
	asked []*http.Request
}

func newGuarded(t *testing.T, listen net.Listener, ca *authority) *guarded {
	t.Helper()
	g := &guarded{double: newDoubleWithoutServer(t)}
	g.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.asked = append(g.asked, r)
		g.mu.Unlock()
		g.serve(w, r)
	}))
	g.server.Config.ErrorLog = log.New(io.Discard, "", 0) // who is not let in
	if listen != nil {
		_ = g.server.Listener.Close() // the default one
		g.server.Listener = listen
	}
	if ca == nil {
		g.server.Start()
	} else {
		cert, key := ca.sign("server", &x509.Certificate{DNSNames: []string{nomadName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		clients := x509.NewCertPool()
		clients.AddCert(ca.cert)
		g.server.TLS = &tls.Config{
			MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
			Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		}
		g.server.StartTLS()
	}
	t.Cleanup(func() {
		g.end()
		g.server.CloseClientConnections()
		g.server.Close()
	})
	return g
}

// setNomad sets these of Nomad's variables, and no other.
func setNomad(t *testing.T, with map[string]string) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "NOMAD_") {
			t.Setenv(name, "") // to have it back
		}
	}
	for name, value := range with {
		t.Setenv(name, value)
	}
}

func TestNomadIsReachedAsItsVariablesSay(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for _, a := range []*authority{ca, other} {
		a.sign("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}
	dir := t.TempDir()
	text, err := os.ReadFile(ca.file("ca.pem"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nomad.pem"), text, 0o600))
	type variables = map[string]string
	for name, c := range map[string]struct {
		with variables // over those that are right; "": without it
		says string    // why it fails; "": it does not
	}{
		"all of them":                 {},
		"authorities of a directory":  {with: variables{"NOMAD_CACERT": "", "NOMAD_CAPATH": dir}},
		"whoever it is":               {with: variables{"NOMAD_CACERT": "", "NOMAD_TLS_SERVER_NAME": "", "NOMAD_SKIP_VERIFY": "true"}},
		"another authority":           {variables{"NOMAD_CACERT": other.file("ca.pem")}, "certificate signed by unknown authority"},
		"no authority":                {variables{"NOMAD_CACERT": ""}, "certificate signed by unknown authority"},
		"no file of it":               {variables{"NOMAD_CACERT": "/no/such/ca.pem"}, "/no/such/ca.pem"},
		"another name":                {variables{"NOMAD_TLS_SERVER_NAME": ""}, "127.0.0.1"},
		"no certificate":              {variables{"NOMAD_CLIENT_CERT": "", "NOMAD_CLIENT_KEY": ""}, "certificate required"},
		"a certificate without a key": {variables{"NOMAD_CLIENT_KEY": ""}, "Both client cert and client key must be provided"},
		"another's key":               {variables{"NOMAD_CLIENT_KEY": other.file("client-key.pem")}, "private key does not match public key"},
		"another's certificate":       {variables{"NOMAD_CLIENT_CERT": other.file("client.pem"), "NOMAD_CLIENT_KEY": other.file("client-key.pem")}, "tls: "},
		"plain text where TLS is":     {variables{"NOMAD_ADDR": "http://"}, "HTTP request to an HTTPS server"},
		"TLS where plain text is":     {variables{"NOMAD_ADDR": "https://plain"}, "server gave HTTP response to HTTPS client"},
		"a task's socket":             {with: variables{"NOMAD_ADDR": "unix://"}},
		"a socket that nobody is at":  {variables{"NOMAD_ADDR": "unix:///no/such/api.sock"}, "/no/such/api.sock"},
		"what is no address":          {variables{"NOMAD_ADDR": "https://%zz"}, "address"},
	} {
		t.Run(name, func(t *testing.T) {
			var listen net.Listener
			guard := ca
			switch c.with["NOMAD_ADDR"] {
			case "unix://":
				socket := t.TempDir() + "/s"
				listen, err = net.Listen("unix", socket)
				require.NoError(t, err)
				guard = nil
				c.with["NOMAD_ADDR"] = "unix://" + socket
			case "https://plain":
				guard = nil
			}
			g := newGuarded(t, listen, guard)
			_, host, _ := strings.Cut(g.server.URL, "://")
			all := variables{
				"NOMAD_ADDR": "https://" + host, "NOMAD_CACERT": ca.file("ca.pem"), "NOMAD_CLIENT_CERT": ca.file("client.pem"),
				"NOMAD_CLIENT_KEY": ca.file("client-key.pem"), "NOMAD_TLS_SERVER_NAME": nomadName,
				"NOMAD_TOKEN": "s3cret", "NOMAD_REGION": "moon", "NOMAD_NAMESPACE": "crew",
			}
			for name, value := range c.with {
				switch value {
				case "http://":
					value += host
				case "https://plain":
					value = "https://" + host
				}
				all[name] = value
			}
			setNomad(t, all)
			config := g.config(t)
			config.API = nil
			if c.says == "" {
				g.reached(t, config)
				return
			}
			_, err := nomad.Open(t.Context(), config)
			require.ErrorContains(t, err, c.says)
			o, err := operate.Open(operate.Config{})
			if err == nil {
				defer o.Close()
				_, err = o.Status(t.Context(), "berth-t")
			}
			require.ErrorContains(t, err, c.says)
			assert.Empty(t, g.asked, "who is not let in learns nothing")
		})
	}
}

// reached runs a container and looks for it: each request, also those that
// wait, says whose it is and what for.
func (g *guarded) reached(t *testing.T, config nomad.Config) {
	t.Helper()
	b := open(t, config)
	_, err := b.Start(t.Context(), spec("t-1"))
	require.NoError(t, err)
	o, err := operate.Open(operate.Config{})
	require.NoError(t, err)
	defer o.Close()
	_, err = o.Find(t.Context(), "berth-t", "t-1")
	require.NoError(t, err)

	g.mu.Lock()
	defer g.mu.Unlock()
	streams, waiting, writes := 0, 0, 0
	for _, r := range g.asked {
		what := r.Method + " " + r.URL.Path
		assert.Equal(t, "s3cret", r.Header.Get("X-Nomad-Token"), what)
		asked, err := url.ParseQuery(r.URL.RawQuery)
		require.NoError(t, err)
		assert.Equal(t, []string{"moon"}, asked["region"], what)
		assert.Equal(t, []string{"crew"}, asked["namespace"], what)
		switch {
		case r.URL.Path == "/v1/event/stream":
			streams++
		case asked.Has("wait"):
			waiting++
		case r.Method != http.MethodGet:
			writes++
		}
	}
	assert.NotZero(t, streams)
	assert.NotZero(t, waiting)
	assert.NotZero(t, writes)
}
