package dockertest_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/dockertest"
	"berth/slots"
	"berth/slots/need"
)

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
	e := dockertest.Need(t)
	dir := dockertest.Project(t)
	for _, c := range []struct {
		name    string
		runAs   string
		options []string
		want    slots.Level
	}{
		{"root, default options", "0:0", nil, slots.LevelUIDLandlock},
		{"root, as in the jobs", "0:0", hardened(t), e.Best()},
		{"nobody, no capabilities", "65532:65532", []string{"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp:exec"}, slots.LevelLandlock},
		{"nobody, as in the jobs", "65532:65532", append(hardened(t), "--cap-drop", "ALL"), slots.LevelNS},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := dockertest.Tag(t)
			out, err := dockertest.Build(t, dir, "ONLY=agent", "AGENT_BASE="+e.Image, "RUN_AS="+c.runAs, "TAG="+name)
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
	dockertest.Need(t)
	name := dockertest.Tag(t)
	out, err := dockertest.Build(t, dockertest.Project(t), "ONLY=agent", "TAG="+name)
	require.NoError(t, err, out)
	c := startImage(t, "berth/agent:"+name, nil, nil)
	r := c.tool(t, "slot_0", "write_file", map[string]any{"path": "a.txt", "content": "kept"}, 30)
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "kept", strings.TrimSpace(c.tool(t, "slot_0", "read_file", map[string]any{"path": "a.txt"}, 30).Output))
	_, err = c.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: "bash", Args: json.RawMessage(`{"command":"true"}`)})
	require.ErrorContains(t, err, "find sh: no such file")
}

func TestBatteriesImageHasWhatCommandsExpect(t *testing.T) {
	e := dockertest.Need(t)
	dir, name := dockertest.Project(t), dockertest.Tag(t)
	out, err := dockertest.Build(t, dir, "ONLY=batteries", "TAG="+name)
	if err != nil && strings.Contains(out, "needs a base") {
		need.Facility(t, "base-image", errors.New(out))
	}
	require.NoError(t, err, out)
	c := startImage(t, "berth/sandboxd:"+name, hardened(t), []string{"--isolation-require", e.Best().String()})
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
	dir := dockertest.Project(t)
	out, err := dockertest.Build(t, dir, "ENGINE=no-such-engine")
	require.Error(t, err)
	assert.Contains(t, out, "needs no-such-engine: apt-get install -y no-such-engine")

	fake := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(fake, "refuses"), []byte("#!/bin/sh\necho no daemon is there >&2\nexit 1\n"), 0o755)) //nolint:gosec // a program
	out, err = dockertest.Build(t, dir, "ENGINE="+filepath.Join(fake, "refuses"))
	require.Error(t, err)
	assert.Contains(t, out, "no engine answers: no daemon is there")

	require.NoError(t, os.WriteFile(filepath.Join(fake, "empty"), []byte("#!/bin/sh\n[ \"$1\" = version ]\n"), 0o755)) //nolint:gosec // a program
	out, err = dockertest.Build(t, dir, "ENGINE="+filepath.Join(fake, "empty"), "ONLY=batteries")
	require.Error(t, err)
	packages, err := os.ReadFile("../../images/batteries/packages")
	require.NoError(t, err)
	assert.Contains(t, out, "pull debian:12")
	assert.Contains(t, out, "mmdebstrap --variant=minbase --include="+strings.ReplaceAll(strings.TrimSpace(string(packages)), "\n", ","))

	require.NoError(t, os.Remove(filepath.Join(dir, "bin", "sandboxd")))
	out, err = dockertest.Build(t, dir, "ENGINE="+filepath.Join(fake, "empty"))
	require.Error(t, err)
	assert.Contains(t, out, "no programs in bin: make build")
}
