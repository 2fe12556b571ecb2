package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestASecretsDirectoryIsHiddenWhereSlotsHaveTheAgentsUser(t *testing.T) {
	dir := resolved(t.TempDir())
	at := func(path ...string) string { return filepath.Join(append([]string{dir}, path...)...) }
	for _, d := range []string{"plain", "mounted/..1", "linked"} {
		require.NoError(t, os.MkdirAll(at(d), 0o755))
	}
	for _, f := range []string{"plain/token", "mounted/..1/token"} {
		require.NoError(t, os.WriteFile(at(f), []byte("x"), 0o600))
	}
	require.NoError(t, os.Symlink("..1", at("mounted", "..data")))
	require.NoError(t, os.Symlink("..data/token", at("mounted", "token")))
	require.NoError(t, os.Symlink("plain", at("way")))
	require.NoError(t, unix.Mkfifo(at("pipe"), 0o600))
	h := &Host{config: Config{DataDir: "/data"}}
	for _, c := range []struct {
		secret         string
		shared, others []string
	}{
		{at("plain", "token"), []string{"/data", at("plain")}, []string{"/data", at("plain", "token")}},
		{at("way", "token"), []string{"/data", at("plain")}, []string{"/data", at("plain", "token")}},
		{at("mounted", "token"), []string{"/data", at("mounted")}, []string{"/data", at("mounted", "..1", "token")}},
		{at("linked", "to-come"), []string{"/data", at("linked")}, []string{"/data", at("linked", "to-come")}},
		{at("pipe"), []string{"/data"}, []string{"/data"}},
		{"/etc/passwd", []string{"/data", "/etc/passwd"}, []string{"/data", "/etc/passwd"}},
	} {
		h.config.Secrets = []string{c.secret}
		for _, m := range []mechanism{{files: true}, {namespaces: true}} {
			assert.Equal(t, c.shared, h.hidden(m), c.secret)
			m.ids = true
			assert.Equal(t, c.others, h.hidden(m), "%s: its mode hides what takes its place", c.secret)
		}
	}
}

func TestASecretMustNotLieWhereSlotsNeedToLook(t *testing.T) {
	h := &Host{config: Config{Secrets: []string{"/etc/berth/token"}}, how: mechanism{files: true}}
	require.NoError(t, h.checkSecrets())
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink("/etc/passwd", link))
	for _, path := range []string{"/etc/passwd", "/usr/share/berth/token", "/token", "/opt/token", link} {
		h.config.Secrets = []string{path}
		h.how = mechanism{namespaces: true}
		require.ErrorContains(t, h.checkSecrets(), "hide "+path+": slots have the agent's user")
		for _, m := range []mechanism{{namespaces: true, ids: true}, {confined: true}} { // modes hide it, or nothing does
			h.how = m
			require.NoError(t, h.checkSecrets())
		}
	}
}
