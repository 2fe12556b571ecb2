package operate_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad/operate"
)

func TestTroubleIsExplained(t *testing.T) {
	refuses := func(status int, words string) func(*testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			d := newDouble(t)
			d.fault = func(*http.Request) (int, string) { return status, words }
			return d.server.URL
		}
	}
	secured := func(with tls.ClientAuthType) func(*testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: with}
			server.Config.ErrorLog = log.New(io.Discard, "", 0) // who is not let in
			server.StartTLS()
			t.Cleanup(server.Close)
			ca := filepath.Join(t.TempDir(), "ca.pem")
			require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
			t.Setenv("CA", ca)
			return server.URL
		}
	}
	at := func(address string) func(*testing.T) string { return func(*testing.T) string { return address } }
	for name, c := range map[string]struct {
		address func(*testing.T) string
		with    map[string]string // variables of Nomad; "$CA" is the file of the server's authority
		kind    operate.Trouble
		mend    string
	}{
		"nobody there":      {at("http://127.0.0.1:1"), nil, operate.Unreachable, "no Nomad answers there; name one by NOMAD_ADDR"},
		"no socket":         {at("unix:///no/such/api.sock"), nil, operate.Unreachable, "NOMAD_ADDR"},
		"no scheme":         {at("localhost:4646"), nil, operate.Misconfigured, "NOMAD_ADDR is to be like http://127.0.0.1:4646"},
		"not allowed":       {refuses(403, "Permission denied"), nil, operate.Misconfigured, "NOMAD_TOKEN"},
		"no such token":     {refuses(403, "ACL token not found"), nil, operate.Misconfigured, "NOMAD_TOKEN"},
		"no namespace":      {refuses(500, `job "a" is in nonexistent namespace "b"`), nil, operate.Misconfigured, "--namespace or NOMAD_NAMESPACE"},
		"no region":         {refuses(500, "No path to region"), nil, operate.Misconfigured, "--region or NOMAD_REGION"},
		"something else":    {refuses(500, "No cluster leader"), nil, operate.Other, ""},
		"nothing of it":     {refuses(404, "job not found"), nil, operate.Other, `"nomad job status"`},
		"another authority": {secured(tls.NoClientCert), nil, operate.Misconfigured, "NOMAD_CACERT or NOMAD_CAPATH"},
		"another name":      {secured(tls.NoClientCert), map[string]string{"NOMAD_CACERT": "$CA", "NOMAD_TLS_SERVER_NAME": "other"}, operate.Misconfigured, "NOMAD_TLS_SERVER_NAME"},
		"no certificate":    {secured(tls.RequireAnyClientCert), map[string]string{"NOMAD_CACERT": "$CA"}, operate.Misconfigured, "NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY"},
		"TLS is wanted":     {func(t *testing.T) string { return "http" + strings.TrimPrefix(secured(tls.NoClientCert)(t), "https") }, nil, operate.Misconfigured, "begin with https://"},
		"TLS is not there":  {func(t *testing.T) string { return "https" + strings.TrimPrefix(newDouble(t).server.URL, "http") }, nil, operate.Misconfigured, "begin with http://"},
	} {
		t.Run(name, func(t *testing.T) {
			address := c.address(t)
			for name, value := range c.with {
				t.Setenv(name, os.ExpandEnv(value))
			}
			o, err := operate.Open(operate.Config{Address: address})
			require.NoError(t, err)
			defer o.Close()
			_, err = o.Status(t.Context(), "berth-t")
			require.Error(t, err)
			kind, mend := operate.Explain(err)
			assert.Equal(t, c.kind, kind, "%v", err)
			if c.mend == "" {
				assert.Empty(t, mend)
			}
			assert.Contains(t, mend, c.mend, "%v", err)
		})
	}
}

func TestWhatIsNoTroubleOfNomadsIsNotExplained(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, interrupted := newDouble(t).operator().Status(ctx, "berth-t")
	require.ErrorIs(t, interrupted, context.Canceled)
	for _, err := range []error{nil, errors.New("connection refused"), interrupted} {
		kind, mend := operate.Explain(err)
		assert.Equal(t, operate.Other, kind, "%v", err)
		assert.Empty(t, mend, "%v", err)
	}
}
