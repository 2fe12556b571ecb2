package sandboxd_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// waiting is a source archive whose own build waits for a file beside it.
func waiting(t *testing.T, dir string) (spec api.EnvironmentSpec, release func()) {
	t.Helper()
	need.Program(t, "pip")
	gate := filepath.Join(dir, "go")
	script := fmt.Sprintf(`
import io, sys, tarfile
gate, to = sys.argv[1:]
backend = '''
import os, time, zipfile
def build_wheel(where, config_settings=None, metadata_directory=None):
    while not os.path.exists(%%r): time.sleep(0.02)
    info = "slow-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(where, "slow-1.0-py3-none-any.whl"), "w") as z:
        z.writestr("slow.py", "value = 42")
        z.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n")
        z.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        z.writestr(info + "RECORD", "")
    return "slow-1.0-py3-none-any.whl"
''' %% gate
project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
with tarfile.open(to, "w:gz") as t:
    for name, text in [("PKG-INFO", "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n"), ("pyproject.toml", project), ("backend.py", backend)]:
        i = tarfile.TarInfo("slow-1.0/" + name)
        i.size = len(text)
        t.addfile(i, io.BytesIO(text.encode()))
`)
	out, err := exec.CommandContext(t.Context(), "python3", "-I", "-c", script, gate, filepath.Join(dir, "slow-1.0.tar.gz")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	spec = api.EnvironmentSpec{
		Language: api.LanguagePython, Requirements: []api.Requirement{{Name: "slow"}}, Index: api.Index{FindLinks: []string{dir}, NoIndex: true},
	}
	return spec, func() { require.NoError(t, os.WriteFile(gate, nil, 0o644)) }
}

func TestAnAgentThatIsKilledInABuildLeavesNothingHalfMade(t *testing.T) {
	for _, level := range agenttest.Levels(t) {
		t.Run(level.String(), func(t *testing.T) {
			dir := sandboxtest.DataDir(t)
			require.NoError(t, os.Chmod(dir, 0o755))
			spec, release := waiting(t, dir)
			o := agenttest.Options{Level: level, Slots: 1, Args: []string{"--environments-packages", dir}}
			a := agenttest.Start(t, o)
			begun := make(chan struct{})
			ended := make(chan error, 1)
			go func() { // ends with the agent
				said := false
				_, err := a.EnsureEnvironment(context.Background(), spec, client.EnsureOptions{Progress: func(string) {
					if !said {
						said = true
						close(begun)
					}
				}})
				ended <- err
			}()
			<-begun
			all, err := a.Environments(t.Context())
			require.NoError(t, err)
			require.Len(t, all.Environments, 1)
			assert.Equal(t, api.EnvironmentBuilding, all.Environments[0].State)
			began := time.Now()
			h, err := a.Health(t.Context())
			require.NoError(t, err)
			assert.Equal(t, api.HealthOK, h.Status, "a build is no business of the slots'")
			assert.Equal(t, 1, h.Available)
			assert.Less(t, time.Since(began), 30*time.Second)
			a.Kill()
			require.Error(t, <-ended)
			left, err := filepath.Glob(filepath.Join(a.Dir, "sandboxes", "environments", "*"))
			require.NoError(t, err)
			require.Len(t, left, 1, "the tree that was being built")

			o.Dir = a.Dir
			b := agenttest.Start(t, o)
			left, err = filepath.Glob(filepath.Join(a.Dir, "sandboxes", "environments", "*"))
			require.NoError(t, err)
			assert.Empty(t, left)
			release()
			r, err := b.EnsureEnvironment(t.Context(), spec, client.EnsureOptions{})
			require.NoError(t, err)
			require.Nil(t, r.Failure, "%+v", r.Failure)
			assert.False(t, r.Cached)
			run := r.Environment.Path + "/bin/python3 -c 'import slow; print(slow.value)'"
			assert.Equal(t, "42", b.Bash(t, "slot_0", run, 30).Output)
			_, err = b.Reset(t.Context(), "slot_0", nil)
			require.NoError(t, err, "environments do not keep a slot from being proven clean")
			b.Kill()

			c := agenttest.Start(t, o)
			r, err = c.EnsureEnvironment(t.Context(), spec, client.EnsureOptions{})
			require.NoError(t, err)
			assert.True(t, r.Cached, "what was finished outlives the agent")
			assert.Equal(t, "42", c.Bash(t, "slot_0", run, 30).Output)
			require.NoError(t, c.DeleteEnvironment(t.Context(), r.Environment.Key))
			assert.Equal(t, slots.KindNotFound, slots.AsError(c.DeleteEnvironment(t.Context(), r.Environment.Key)).Kind)
			assert.Equal(t, 200, c.Send(t, http.MethodGet, "/health", "").Status)
		})
	}
}
