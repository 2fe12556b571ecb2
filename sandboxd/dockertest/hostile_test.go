package dockertest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/dockertest"
	"berth/slots/sandbox/sandboxtest"
)

// suite builds the hostile suite and all that it needs into one directory.
func suite(t *testing.T) string {
	t.Helper()
	dir := sandboxtest.DataDir(t)
	for at, args := range map[string][]string{
		"hostile.test": {"test", "-c", "-o", dir + "/hostile.test", "berth/sandboxd/hostile"},
		"attacker":     {"build", "-trimpath", "-ldflags=-s -w", "-o", dir + "/attacker", "berth/sandboxd/hostile/testdata/attacker"},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "build %s: %s", at, out)
	}
	text, err := os.ReadFile(sandboxtest.Agent(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sandboxd"), text, 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// TestHostileCodeInsideContainers runs the hostile suite as the container's
// program, agents and all: their levels are those that the container allows.
// By default those families run that try to break out and to spy; the whole
// suite, and at every level, with BERTH_LEVELS=all.
func TestHostileCodeInsideContainers(t *testing.T) {
	e := dockertest.Need(t)
	dir := suite(t)
	run := "^TestHostile(A|X|E)$"
	if agenttest.EveryLevel() {
		run = "."
	}
	for _, m := range modes(t, e) {
		if !slices.Contains([]string{"default", "user", "slots profile, no AppArmor"}, m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			// The machine's own programs, python3 among them: the image has few.
			args := slices.Concat([]string{
				"run", "--rm", "--init", "--volume", dir + ":/suite:ro", "--volume", agenttest.UIDClaims(t) + ":/data/berth-test-uids-0", "--volume", "/usr:/usr:ro", "--volume", "/etc:/etc:ro",
				"--env", "BERTH_AGENT=/suite/sandboxd", "--env", "BERTH_ATTACKER=/suite/attacker", "--env", "TMPDIR=/data",
				"--env", "PATH=/usr/bin:/bin", "--env", "BERTH_LEVELS", "--env", "BERTH_PATIENCE", "--workdir", "/suite",
			}, m.options, []string{e.Image, "/suite/hostile.test", "-test.run", run, "-test.timeout", "40m", fmt.Sprintf("-test.v=%v", testing.Verbose())})
			out, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
		})
	}
}
