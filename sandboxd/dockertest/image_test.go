package dockertest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// project is a copy of what builds images, with programs of its own, so that
// a test neither needs nor changes those in bin.
func project(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "images"), os.DirFS("../../images")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	program, err := os.ReadFile(sandboxtest.Agent(t))
	require.NoError(t, err)
	for _, name := range []string{"sandboxd", "orchestrator"} { // no test runs the second
		require.NoError(t, os.WriteFile(filepath.Join(dir, "bin", name), program, 0o755)) //nolint:gosec // a program
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "images", "build"), 0o755)) //nolint:gosec // a program
	return dir
}

// build runs images/build with the variables and returns what it printed.
func build(t *testing.T, dir string, variables ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "images", "build"))
	cmd.Env = append(os.Environ(), variables...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// tag is one of its own for each test, and removes the images of it at the end.
func tag(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("test-%d-%s", os.Getpid(), strings.ToLower(strings.NewReplacer("/", "-", ",", "", " ", "-").Replace(t.Name())))
	t.Cleanup(func() {
		for _, image := range []string{"berth/agent:", "berth/sandboxd:", "berth/orchestrator:"} {
			_, _ = docker("image", "rm", image+name) // a test makes some of them
		}
	})
	return name
}

func (e engine) best() slots.Level {
	if e.unified {
		return slots.LevelNSCgroup
	}
	return slots.LevelNS
}

// hardened are the options of the jobs' security_opt.
func hardened(t *testing.T) []string {
	t.Helper()
	profile, err := filepath.Abs("../../images/seccomp-slots.json")
	require.NoError(t, err)
	return []string{
		"--security-opt", "seccomp=" + profile, "--security-opt", "apparmor=unconfined", "--security-opt", "no-new-privileges",
		"--read-only", "--tmpfs", "/tmp:exec", "--volume", "/var/lib/berth",
	}
}

func TestAgentImageReachesItsLevelOnAnyImage(t *testing.T) {
	e := needEngine(t)
	dir := project(t)
	for _, c := range []struct {
		name    string
		runAs   string
		options []string
		want    slots.Level
	}{
		{"root, default options", "0:0", nil, slots.LevelUIDLandlock},
		{"root, as in the jobs", "0:0", hardened(t), e.best()},
		{"nobody, no capabilities", "65532:65532", []string{"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp:exec"}, slots.LevelLandlock},
		{"nobody, as in the jobs", "65532:65532", append(hardened(t), "--cap-drop", "ALL"), slots.LevelNS},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := tag(t)
			out, err := build(t, dir, "ONLY=agent", "AGENT_BASE="+e.image, "RUN_AS="+c.runAs, "TAG="+name)
			require.NoError(t, err, out)
			assert.Regexp(t, `(?m)^berth/agent:`+name+` +[0-9]+\.[0-9] MB$`, out)
			built := startImage(t, "berth/agent:"+name, c.options, []string{"--isolation-require", c.want.String()})
			t.Logf("%s: %v", built.health.Isolation.Level, built.health.Isolation.Axes)
			assert.GreaterOrEqual(t, built.health.Isolation.Level, c.want)
			runsCommands(t, built)
			keepsFiles(t, built)
			hidesNeighbours(t, built)
		})
	}
}

func TestAgentImageOfNothingServesFilesAndSaysThatItHasNoShell(t *testing.T) {
	needEngine(t)
	name := tag(t)
	out, err := build(t, project(t), "ONLY=agent", "TAG="+name)
	require.NoError(t, err, out)
	c := startImage(t, "berth/agent:"+name, nil, nil)
	r := c.tool(t, "slot_0", "write_file", map[string]any{"path": "a.txt", "content": "kept"}, 30)
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "kept", strings.TrimSpace(c.tool(t, "slot_0", "read_file", map[string]any{"path": "a.txt"}, 30).Output))
	_, err = c.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: "bash", Args: json.RawMessage(`{"command":"true"}`)})
	require.ErrorContains(t, err, "find sh: no such file")
}

func TestBatteriesImageHasWhatCommandsExpect(t *testing.T) {
	e := needEngine(t)
	dir, name := project(t), tag(t)
	out, err := build(t, dir, "ONLY=batteries", "TAG="+name)
	if err != nil && strings.Contains(out, "needs a base") {
		need.Facility(t, "base-image", errors.New(out))
	}
	require.NoError(t, err, out)
	c := startImage(t, "berth/sandboxd:"+name, hardened(t), []string{"--isolation-require", e.best().String()})
	runsCommands(t, c)
	r := c.bash(t, "slot_0", `set -e
		git init -q repo && cd repo && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && git log --format=%s
		python3 -c 'print(sum(range(10)))' && python3 -m venv --without-pip env && ./env/bin/python -c 'print("venv")'
		node -e 'console.log([1, 2].map((n) => n * 2).join())'
		echo '{"a": 1}' | jq .a && rg --version | sed -n '1s/ .*//p' && curl --version >/dev/null && make --version >/dev/null
		printf 'a\n' >one && printf 'b\n' >two && { diff -u one two >p || patch -s one p; } && cat one && tree --version >/dev/null`)
	assert.Empty(t, r.Error)
	assert.Equal(t, []string{"first", "45", "venv", "2,4", "1", "ripgrep", "b"}, strings.Split(strings.TrimSpace(r.Output), "\n"))
}

func TestBuildingImagesNamesWhatIsMissingAndWhatMendsIt(t *testing.T) {
	dir := project(t)
	out, err := build(t, dir, "ENGINE=no-such-engine")
	require.Error(t, err)
	assert.Contains(t, out, "needs no-such-engine: apt-get install -y no-such-engine")

	fake := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(fake, "refuses"), []byte("#!/bin/sh\necho no daemon is there >&2\nexit 1\n"), 0o755)) //nolint:gosec // a program
	out, err = build(t, dir, "ENGINE="+filepath.Join(fake, "refuses"))
	require.Error(t, err)
	assert.Contains(t, out, "no engine answers: no daemon is there")

	require.NoError(t, os.WriteFile(filepath.Join(fake, "empty"), []byte("#!/bin/sh\n[ \"$1\" = version ]\n"), 0o755)) //nolint:gosec // a program
	out, err = build(t, dir, "ENGINE="+filepath.Join(fake, "empty"), "ONLY=batteries")
	require.Error(t, err)
	packages, err := os.ReadFile("../../images/batteries/packages")
	require.NoError(t, err)
	assert.Contains(t, out, "pull debian:12")
	assert.Contains(t, out, "mmdebstrap --variant=minbase --include="+strings.ReplaceAll(strings.TrimSpace(string(packages)), "\n", ","))

	require.NoError(t, os.Remove(filepath.Join(dir, "bin", "sandboxd")))
	out, err = build(t, dir, "ENGINE="+filepath.Join(fake, "empty"))
	require.Error(t, err)
	assert.Contains(t, out, "no programs in bin: make build")
}
