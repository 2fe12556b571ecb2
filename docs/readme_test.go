package docs_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/need"
)

// The README is read from, and its scripts run in, the project's root.
const root = ".."

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	return string(text)
}

// block is a script that the README shows and what it says the script prints.
type block struct {
	script string
	prints []string // each stands somewhere in the output, spaces apart
}

var (
	scripts = regexp.MustCompile("(?m)^```sh run\n((?:[^`].*\n|\n)*)```\n(?:```text\n((?:[^`].*\n|\n)*)```\n)?")
	spaces  = regexp.MustCompile(` +`)
)

// blocks finds the scripts that are marked to be run.
func blocks(text string) []block {
	var out []block
	for _, m := range scripts.FindAllStringSubmatch(text, -1) {
		out = append(out, block{m[1], strings.FieldsFunc(m[2], func(r rune) bool { return r == '\n' })})
	}
	return out
}

// freeAddress is a loopback address on which nobody listens right now.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

// run plays a script as a reader would, on ports of its own, and returns
// what it printed. Nothing that it started is left behind.
func run(t *testing.T, script string) string {
	t.Helper()
	// Slots under uids of their own must get through to their workspaces,
	// which a folder of t.TempDir does not allow.
	tmp, err := os.MkdirTemp("", "berth-readme-") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(tmp)) })
	require.NoError(t, os.Chmod(tmp, 0o711))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, address := range []string{"127.0.0.1:8080", "127.0.0.1:9001"} {
		script = strings.ReplaceAll(script, address, freeAddress(t))
	}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "TMPDIR="+tmp, "XDG_CONFIG_HOME="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	assert.Equal(t, syscall.ESRCH, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL), "the script left processes behind")
	require.NoError(t, err, "%s", out)
	return string(out)
}

func TestReadmeScriptsPrintWhatTheReadmeSays(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs")
	}
	all := blocks(readme(t))
	require.NotEmpty(t, all)
	for _, b := range all {
		name, _, _ := strings.Cut(b.script, "\n")
		t.Run(name, func(t *testing.T) {
			for _, command := range []string{"make", "curl"} {
				if strings.Contains(b.script, command+" ") {
					_, err := exec.LookPath(command)
					need.Facility(t, command, err)
				}
			}
			out := run(t, b.script)
			for _, line := range b.prints {
				assert.Contains(t, spaces.ReplaceAllString(out, " "), spaces.ReplaceAllString(strings.TrimSpace(line), " "))
			}
		})
	}
}

func TestReadmeFlagsExist(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the agent")
	}
	binary := filepath.Join(t.TempDir(), "sandboxd")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "berth/cmd/sandboxd").CombinedOutput()
	require.NoError(t, err, "%s", out)
	help, err := exec.CommandContext(t.Context(), binary, "serve", "--help").CombinedOutput()
	require.NoError(t, err, "%s", help)
	_, section, found := strings.Cut(readme(t), "\n## Configuration\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	section = regexp.MustCompile(`(?m)^[^|].*$`).ReplaceAllString(section, "") // its table is left
	flags := regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(section, -1)
	require.NotEmpty(t, flags)
	for _, flag := range flags {
		assert.Regexp(t, `(^|\s)-?`+flag[1][1:]+`(\s|=|,|$)`, string(help))
	}
}

func TestReadmeFitsOnAFewScreens(t *testing.T) {
	assert.LessOrEqual(t, strings.Count(readme(t), "\n"), 200)
}

func TestReadmeLinksLeadSomewhere(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^):]+)\)`).FindAllStringSubmatch(readme(t), -1)
	require.NotEmpty(t, links)
	for _, link := range links {
		_, err := os.Stat(filepath.Join(root, link[1]))
		assert.NoError(t, err)
	}
}

func TestBlocksAreFoundWithWhatTheyPrint(t *testing.T) {
	text := "a\n```sh run\nls\n\npwd\n```\n```text\nb  c\nd\n```\n```sh\nrm -rf /\n```\n```sh run\nid\n```\ntext\n"
	assert.Equal(t, []block{{"ls\n\npwd\n", []string{"b  c", "d"}}, {"id\n", []string{}}}, blocks(text))
}
