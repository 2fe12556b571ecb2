package dockertest_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// engine is the Docker that the tests use.
type engine struct {
	image    string
	apparmor bool
	unified  bool // cgroup v2
}

var found struct {
	once   sync.Once
	engine engine
	err    error
}

// needEngine finds an engine that answers and an image to start, or skips.
func needEngine(t *testing.T) engine {
	t.Helper()
	found.once.Do(func() { found.engine, found.err = openEngine() })
	need.Facility(t, "docker", found.err)
	return found.engine
}

func openEngine() (engine, error) {
	out, err := docker("info", "--format", "{{.CgroupVersion}} {{json .SecurityOptions}} {{.ServerVersion}}")
	if err != nil {
		return engine{}, err
	}
	e := engine{image: os.Getenv("BERTH_IMAGE"), unified: strings.HasPrefix(out, "2 "), apparmor: strings.Contains(out, "apparmor")}
	if e.image == "" {
		e.image, err = importImage()
	}
	return e, err
}

// docker runs the command line client and returns what it prints.
func docker(args ...string) (string, error) {
	var out, problems bytes.Buffer
	cmd := exec.Command("docker", args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(problems.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// programs are what the image is made of, from the machine's own files: no
// registry is asked.
var programs = []string{
	"bash", "sh", "cat", "chmod", "echo", "env", "head", "id", "ls", "mkdir", "mv", "printf", "pwd", "rm", "seq", "setsid",
	"sleep", "stat", "tail", "timeout", "touch", "true", "wc",
}

const ownImage = "berth-dockertest"

func importImage() (string, error) {
	files := map[string]string{} // where in the image, from where
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("make image: %w", err)
		}
		files["/usr/bin/"+name] = path
		text, err := exec.Command("ldd", path).Output()
		if err != nil {
			return "", fmt.Errorf("find libraries of %s: %w", path, err)
		}
		for _, library := range absolutePath.FindAllString(string(text), -1) {
			files[library] = library
		}
	}
	cmd := exec.Command("docker", "import", "-", ownImage)
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", fmt.Errorf("import image: %w", err)
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("import image: %w", err)
	}
	err = errors.Join(writeImage(in, files), in.Close())
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return "", fmt.Errorf("import image: %w: %s", err, problems.String())
	}
	return ownImage, nil
}

var absolutePath = regexp.MustCompile(`/\S+`)

// writeImage writes the files with the directories that lead to them. Nobody
// makes /var/tmp: not every image has one.
func writeImage(out io.Writer, files map[string]string) error {
	w := tar.NewWriter(out)
	made := map[string]bool{"/": true}
	var directory func(at string, mode int64) error
	directory = func(at string, mode int64) error {
		if made[at] {
			return nil
		}
		if err := directory(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		made[at] = true
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: at[1:] + "/", Mode: mode})
	}
	err := errors.Join(directory("/tmp", 0o1777), directory("/proc", 0o755), directory("/sys", 0o755), directory("/dev", 0o755),
		directory("/etc", 0o755), directory("/data", 0o1777), directory("/usr/bin", 0o755))
	err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin", Linkname: "usr/bin"}))
	made["/bin"] = true
	for _, top := range []string{"/lib", "/lib64"} {
		if to, readErr := os.Readlink(top); readErr == nil {
			made[top] = true
			to = strings.TrimPrefix(to, "/")
			err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: top[1:], Linkname: to}), directory("/"+to, 0o755))
		}
	}
	for _, at := range slices.Sorted(maps.Keys(files)) {
		content, readErr := os.ReadFile(files[at])
		err = errors.Join(err, readErr, directory(filepath.Dir(at), 0o755),
			w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: at[1:], Mode: 0o755, Size: int64(len(content))}))
		if err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	accounts := "root:x:0:0:root:/root:/bin/bash\n"
	err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644, Size: int64(len(accounts))}))
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, accounts); err != nil {
		return err
	}
	return w.Close()
}

// container is one sandboxd as PID 1 of a container.
type container struct {
	*client.Client
	id     string
	health api.Health
}

// start runs the agent of the tests in the engine's image, which has none.
func (e engine) start(t *testing.T, options, flags []string) *container {
	t.Helper()
	options = append([]string{"--volume", sandboxtest.Agent(t) + ":/sandboxd:ro", "--entrypoint", "/sandboxd"}, options...)
	return startImage(t, e.image, options, append([]string{"--data-dir", "/data/berth"}, flags...))
}

// startImage runs `sandboxd serve` of an image under the options of docker run
// and waits until its slots are ready. The container is removed when the test
// ends.
func startImage(t *testing.T, image string, options, flags []string) *container {
	t.Helper()
	args := slices.Concat([]string{"run", "--detach", "--publish", "127.0.0.1::8080"}, options,
		[]string{image, "serve", "--listen", "0.0.0.0:8080", "--insecure-no-auth", "--slots", "2"}, flags)
	id, err := docker(args...)
	require.NoError(t, err)
	c := &container{id: id}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.log())
		}
		if _, err := docker("rm", "--force", "--volumes", id); err != nil {
			t.Error(err)
		}
	})
	address, err := docker("port", id, "8080")
	require.NoError(t, err, c.log())
	address, _, _ = strings.Cut(address, "\n")
	c.Client, err = client.New(client.Config{URL: "http://" + address})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c.health, err = c.Health(t.Context())
		if err == nil && c.health.Status == api.HealthOK && c.health.Available == 2 {
			return c
		}
		running, inspectErr := docker("inspect", "--format", "{{.State.Running}}", id)
		if inspectErr != nil || running != "true" || time.Now().After(deadline) {
			t.Fatalf("not ready: %v, running %s, %+v", err, running, c.health)
		}
	}
}

func (c *container) log() string {
	out, err := exec.Command("docker", "logs", c.id).CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

// processes lists state and command line of every process in the container.
func (c *container) processes(t *testing.T) []string {
	t.Helper()
	out, err := docker("top", c.id, "-eo", "pid,stat,args")
	require.NoError(t, err)
	return strings.Split(out, "\n")[1:]
}
