package images_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator"
	"berth/sandboxd"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// unit reads the settings of a unit; those that are there more than once are
// joined by spaces.
func unit(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := os.Open(filepath.Join("systemd", name))
	require.NoError(t, err)
	defer file.Close()
	out := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok && !strings.HasPrefix(key, "#") {
			out[key] = strings.TrimSpace(out[key] + " " + value)
		}
	}
	return out
}

func TestUnitsAreWhatSystemdTakes(t *testing.T) {
	_, err := exec.LookPath("systemd-analyze")
	need.Facility(t, "systemd", err)
	dir := t.TempDir()
	units, err := filepath.Glob("systemd/*.service")
	require.NoError(t, err)
	require.Len(t, units, 2)
	args := []string{"verify", "--man=no"}
	for _, name := range units {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		// The programs are not installed where the tests run.
		mended := strings.ReplaceAll(string(text), "ExecStart=/usr/local/bin/", "ExecStart="+dir+"/")
		args = append(args, filepath.Join(dir, filepath.Base(name)))
		require.NoError(t, os.WriteFile(args[len(args)-1], []byte(mended), 0o600))
		program := filepath.Join(dir, strings.TrimSuffix(filepath.Base(name), ".service"))
		require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755)) //nolint:gosec // a program
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Empty(t, string(out), "there is nothing that it ignores")
}

func TestUnitOfTheAgentLeavesItTheTimeThatItTakes(t *testing.T) {
	u := unit(t, "sandboxd.service")
	c, err := sandboxd.Parse(nil, strings.Fields(u["Environment"]), nil)
	require.NoError(t, err, "its variables are the agent's")
	stop, err := time.ParseDuration(u["TimeoutStopSec"])
	require.NoError(t, err)
	assert.Greater(t, stop, c.DrainTimeout+5*time.Second)
	assert.Equal(t, "64 78", u["RestartPreventExitStatus"], "the statuses that --help says do not mend themselves")
	assert.Equal(t, "yes", u["Delegate"], "else there is no cgroup for a slot")
	assert.Equal(t, "continue", u["OOMPolicy"], "else one slot's want of memory ends the unit")
}

func TestUnitOfTheOrchestratorLeavesItTheTimeThatItTakes(t *testing.T) {
	u := unit(t, "orchestrator.service")
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	environ := strings.Fields(strings.ReplaceAll(u["Environment"], "%d/token", token))
	c, err := orchestrator.Parse(nil, environ, io.Discard)
	require.NoError(t, err, "its variables are the orchestrator's")
	assert.Equal(t, "nomad", c.Backend)
	assert.Equal(t, token, c.TokenFile)
	stop, err := time.ParseDuration(u["TimeoutStopSec"])
	require.NoError(t, err)
	assert.Greater(t, stop, c.DrainTimeout+5*time.Second)
	assert.Equal(t, "64 78", u["RestartPreventExitStatus"], "the statuses that --help says do not mend themselves")
}

// The commands at the top of each unit are played in a root of their own, and
// what they make is where the unit looks for it.
func TestUnitsAreInstalledAsTheySay(t *testing.T) {
	_, err := exec.LookPath("openssl")
	need.Facility(t, "openssl", err)
	for _, name := range []string{"sandboxd", "orchestrator"} {
		t.Run(name, func(t *testing.T) {
			file := "systemd/" + name + ".service"
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			top, _, _ := strings.Cut(string(text), "[Unit]")
			tree, dir := t.TempDir(), t.TempDir()
			for _, made := range []string{tree + "/bin", dir + "/usr/local/bin", dir + "/etc/systemd/system"} {
				require.NoError(t, os.MkdirAll(made, 0o755)) //nolint:gosec // as they are elsewhere
			}
			here, err := filepath.Abs(".")
			require.NoError(t, err)
			require.NoError(t, os.Symlink(here, tree+"/images"))
			require.NoError(t, os.WriteFile(tree+"/bin/"+name, []byte("program"), 0o600))
			var script strings.Builder
			last := ""
			for line := range strings.Lines(top) {
				if command, ok := strings.CutPrefix(line, "#   "); ok {
					last = strings.TrimSpace(command)
					if !strings.HasPrefix(last, "systemctl ") {
						script.WriteString(strings.NewReplacer(" /", " "+dir+"/", ">/", ">"+dir+"/").Replace(command))
					}
				}
			}
			assert.Equal(t, "systemctl enable --now "+name, last)
			cmd := exec.CommandContext(t.Context(), "bash", "-euc", script.String())
			cmd.Dir = tree
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s\n%s", script.String(), out)

			u := unit(t, name+".service")
			program, _, _ := strings.Cut(u["ExecStart"], " ")
			mode := func(path string) os.FileMode {
				stat, err := os.Stat(dir + path)
				require.NoError(t, err)
				return stat.Mode().Perm()
			}
			assert.EqualValues(t, 0o755, mode(program))
			assert.EqualValues(t, 0o644, mode("/etc/systemd/system/"+name+".service"))
			token := "/etc/berth/token"
			if name == "orchestrator" {
				_, token, _ = strings.Cut(u["LoadCredential"], ":")
				assert.EqualValues(t, 0o600, mode(strings.TrimPrefix(u["EnvironmentFile"], "-")))
			} else {
				assert.Contains(t, u["Environment"], "SANDBOXD_TOKEN_FILE="+token)
			}
			assert.EqualValues(t, 0o600, mode(token))
			assert.EqualValues(t, 0o700, mode("/etc/berth"))
			secret, err := os.ReadFile(dir + token)
			require.NoError(t, err)
			assert.Len(t, strings.TrimSpace(string(secret)), 64)
		})
	}
}

// The capabilities that the unit leaves the agent are enough for the level
// that the machine gives an agent with all of them.
func TestUnitOfTheAgentCostsNoIsolation(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Facility(t, "root", fmt.Errorf("runs as uid %d", os.Geteuid()))
	}
	_, err := exec.LookPath("setpriv")
	need.Facility(t, "setpriv", err)
	level := func(command ...string) string {
		out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		first, _, _ := strings.Cut(string(out), "\n")
		return first
	}
	probe := []string{sandboxtest.Agent(t), "probe", "--data-dir", sandboxtest.DataDir(t)}
	bounding := "-all"
	for name := range strings.FieldsSeq(unit(t, "sandboxd.service")["CapabilityBoundingSet"]) {
		bounding += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	free := level(probe...)
	assert.Regexp(t, `^level +\S+$`, free)
	assert.Equal(t, free, level(append([]string{"setpriv", "--no-new-privs", "--bounding-set=" + bounding, "--"}, probe...)...))
}
