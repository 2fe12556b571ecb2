// Package dockertest finds the container engine of the machine for tests, and
// builds the project's images on it, of a base that it makes of the machine's
// own files. Tests that need it skip where no engine answers. Its own tests
// are those of sandboxd as PID 1 of Docker containers.
package dockertest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// Engine is the Docker that tests use.
type Engine struct {
	Image    string // to start: bash and a few programs of the machine, or what BERTH_IMAGE names
	AppArmor bool
	Unified  bool // cgroup v2
}

var found struct {
	once   sync.Once
	engine Engine
	err    error
}

// Need finds an engine that answers and an image to start, or skips the test.
func Need(t testing.TB) Engine {
	t.Helper()
	found.once.Do(func() { found.engine, found.err = open() })
	need.Facility(t, "docker", found.err)
	return found.engine
}

func open() (Engine, error) {
	out, err := Docker("info", "--format", "{{.CgroupVersion}} {{json .SecurityOptions}} {{.ServerVersion}}")
	if err != nil {
		return Engine{}, err
	}
	e := Engine{Image: os.Getenv("BERTH_IMAGE"), Unified: strings.HasPrefix(out, "2 "), AppArmor: strings.Contains(out, "apparmor")}
	if e.Image == "" {
		e.Image, err = importImage()
	}
	return e, err
}

// Docker runs the command line client and returns what it prints.
func Docker(args ...string) (string, error) {
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(context.Background(), "docker", args...) // tests clean up by it
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(problems.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// Best is the level that a container reaches under the options of the jobs.
func (e Engine) Best() slots.Level {
	if e.Unified {
		return slots.LevelNSCgroup
	}
	return slots.LevelNS
}

// Project is a copy of what builds images, with programs of its own, so that
// a test neither needs nor changes those in bin.
func Project(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "images"), os.DirFS(Images(t))))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	program, err := os.ReadFile(sandboxtest.Agent(t))
	require.NoError(t, err)
	for _, name := range []string{"sandboxd", "orchestrator"} { // who runs the second puts it there
		require.NoError(t, os.WriteFile(filepath.Join(dir, "bin", name), program, 0o755)) //nolint:gosec // a program
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "images", "build"), 0o755)) //nolint:gosec // a program
	return dir
}

// Images is the folder of the images, by its full path: beside go.mod, since a
// test binary need not know where it was compiled.
func Images(t testing.TB) string {
	t.Helper()
	mod, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	require.NoError(t, err)
	return filepath.Join(filepath.Dir(string(mod)), "images")
}

// Build runs images/build of a Project with the variables and returns what it
// printed.
func Build(t testing.TB, dir string, variables ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "images", "build"))
	cmd.Env = append(os.Environ(), variables...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Tag is one of its own for each test, whose end removes the images that have
// it.
func Tag(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test-%d-%s", os.Getpid(), strings.ToLower(strings.NewReplacer("/", "-", ",", "", " ", "-").Replace(t.Name())))
	t.Cleanup(func() {
		for _, image := range []string{"berth/agent:", "berth/sandboxd:", "berth/orchestrator:"} {
			_, _ = Docker("image", "rm", image+name) // a test makes some of them
		}
	})
	return name
}
