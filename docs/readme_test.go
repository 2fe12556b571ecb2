package docs_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
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
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		all = append(all, blocks(string(text))...)
	}
	for _, b := range all {
		name, _, _ := strings.Cut(b.script, "\n")
		t.Run(name, func(t *testing.T) {
			for _, command := range []string{"make", "curl", "python3"} {
				if strings.Contains(b.script, command+" ") || command == "python3" && strings.Contains(b.script, ".py") {
					_, err := exec.LookPath(command)
					need.Facility(t, command, err)
				}
			}
			if strings.Contains(b.script, "tool demo") {
				need.Program(t, "pip")
				need.Program(t, "npm")
			}
			out := run(t, b.script)
			for _, line := range b.prints {
				assert.Contains(t, spaces.ReplaceAllString(out, " "), spaces.ReplaceAllString(strings.TrimSpace(line), " "))
			}
		})
	}
}

// program builds one of the programs.
func program(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the programs")
	}
	binary := filepath.Join(t.TempDir(), name)
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "berth/cmd/"+name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// table is the README's table with this first column, its rows apart.
func table(t *testing.T, column string) []string {
	t.Helper()
	_, rest, found := strings.Cut(readme(t), "\n| "+column+" |")
	require.True(t, found, column)
	rest, _, _ = strings.Cut(rest, "\n\n")
	rows := strings.Split(rest, "\n")
	require.Greater(t, len(rows), 3, column)
	return rows[2:]
}

func TestReadmeFlagsExist(t *testing.T) {
	for _, name := range []string{"sandboxd", "orchestrator"} {
		help, err := exec.CommandContext(t.Context(), program(t, name), "serve", "--help").CombinedOutput()
		require.NoError(t, err, "%s", help)
		flags := regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(strings.Join(table(t, "flag of `"+name+" serve`"), "\n"), -1)
		require.NotEmpty(t, flags)
		for _, flag := range flags {
			assert.Regexp(t, `(^|\s)-?`+flag[1][1:]+`(\s|=|,|$)`, string(help), name)
		}
	}
}

func TestReadmeCallsOfAPoolExist(t *testing.T) {
	address := freeAddress(t)
	server := exec.CommandContext(t.Context(), program(t, "orchestrator"), "serve", "--listen", address, "--containers", "0",
		"--sandboxd", program(t, "sandboxd"), "--data-dir", t.TempDir(), "--log-level", "warn")
	var log strings.Builder // read when it has ended
	server.Stdout, server.Stderr = &log, &log
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill() // it has nothing
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	var described struct{ Paths map[string]map[string]any }
	require.Eventually(t, func() bool {
		answer, err := http.Get("http://" + address + "/openapi.json")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return json.NewDecoder(answer.Body).Decode(&described) == nil
	}, time.Minute, 50*time.Millisecond)
	calls := regexp.MustCompile("`(?:([A-Z]+) )?(/v1/|…/)([a-z0-9/{}]+)`")
	found := 0
	for _, row := range table(t, "call of a pool") {
		base := ""
		for _, m := range calls.FindAllStringSubmatch(row, -1) {
			path := m[2] + m[3]
			if m[2] == "…/" {
				path = base + "/" + m[3]
			} else if strings.Contains(path, "}") {
				base = path[:strings.Index(path, "}")+1]
			}
			require.Contains(t, described.Paths, path, row)
			if m[1] != "" {
				assert.Contains(t, described.Paths[path], strings.ToLower(m[1]), path)
			}
			found++
		}
	}
	assert.GreaterOrEqual(t, found, 10)
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
