package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
)

func TestExecEndsAsItsCommandDoes(t *testing.T) {
	p := start(t, "2")
	for _, c := range []struct {
		args           []string
		stdin          string
		status         int
		stdout, stderr string
	}{
		{args: []string{"--", "printf", "%s|", "a b", "$HOME", "'", "ü\n"}, stdout: "a b|$HOME|'|ü\n|"},
		{args: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}, status: 7, stdout: "out\n", stderr: "err\n"},
		{args: []string{"no-such-command"}, status: 127, stderr: "command not found"},
		{args: []string{"/"}, status: 126, stderr: "directory"},
		{args: []string{"sh", "-c", "kill -9 $$"}, status: 137, stderr: "SIGKILL"},
		{args: []string{"--timeout", "500ms", "--", "sh", "-c", "echo begun; sleep 1000"}, status: 124, stdout: "begun\n", stderr: "give it more by --timeout"},
		{args: []string{"-e", "X=1 2", "-e", "Y=", "--cwd", "/tmp", "--", "sh", "-c", `echo "$X$Y"; pwd`}, stdout: "1 2\n/tmp\n"},
		{args: []string{"-i", "--", "tr", "a-z", "A-Z"}, stdin: "text\n", stdout: "TEXT\n"},
		{args: []string{"cat"}, stdin: "not for it"},
		{args: []string{"-i", "cat"}, stdin: "\xff", status: 1, stderr: "not UTF-8"},
		{args: []string{"--env", "=x", "true"}, status: 2, stderr: "want NAME=VALUE"},
		{args: []string{"--lease", "x", "--trajectory", "y", "true"}, status: 2, stderr: "lease"},
		{args: []string{"--wait", "-1s", "true"}, status: 2, stderr: "--wait"},
		{args: nil, status: 2, stderr: "usage: berth exec"},
		{args: []string{"--template", "nothing", "true"}, status: 1, stderr: "nothing"},
	} {
		got := p.feed(c.stdin, append([]string{"exec"}, c.args...)...)
		assert.Equal(t, c.status, got.status, "%q: %s", c.args, got.stderr)
		assert.Equal(t, c.stdout, got.stdout, "%q", c.args)
		assert.Contains(t, got.stderr, c.stderr, "%q", c.args)
		if c.stderr == "" {
			assert.Empty(t, got.stderr, "%q", c.args)
		}
	}
	assert.Empty(t, p.leases(), "each gave its slot back")
}

func TestExecPassesManyBytesOn(t *testing.T) {
	p := start(t, "1")
	got := p.run("exec", "--", "sh", "-c", "seq 200000; head -c 100000 /dev/zero")
	require.Zero(t, got.status, got.stderr)
	assert.True(t, strings.HasPrefix(got.stdout, "1\n2\n"))
	assert.True(t, strings.HasSuffix(got.stdout, "200000\n"+strings.Repeat("\x00", 100000)))
	assert.Len(t, got.stdout, 1288895+100000)
}

func TestExecUsesTheSlotThatItIsTold(t *testing.T) {
	p := start(t, "2")
	lease := p.hold("mine", nil)
	require.Zero(t, p.run("exec", "--lease", lease, "--", "touch", "here").status)
	assert.Equal(t, "here\n", p.run("exec", "--lease", lease, "ls").stdout)
	assert.Equal(t, "here\n", p.run("exec", "--trajectory", "mine", "ls").stdout)
	require.Len(t, p.leases(), 1, "what it did not lease it does not release")

	kept := p.run("exec", "--keep", "--label", "run=7", "--ttl", "10m", "--", "touch", "kept")
	require.Zero(t, kept.status, kept.stderr)
	require.Contains(t, kept.stderr, "berth release ")
	_, name, _ := strings.Cut(kept.stderr, "kept ")
	name, _, _ = strings.Cut(name, " ")
	assert.Equal(t, "kept\n", p.run("exec", "--lease", name, "ls").stdout)
	held := p.leases()
	require.Len(t, held, 2)

	full := p.run("exec", "--wait", "100ms", "true")
	assert.Equal(t, 1, full.status)
	assert.Contains(t, full.stderr, "by --wait")
	require.Zero(t, p.run("release", name).status)
	gone := p.run("exec", "--lease", name, "true")
	assert.Equal(t, 1, gone.status)
	assert.Contains(t, gone.stderr, name)
	bad := p.run("exec", "--lease", "nonsense", "true")
	assert.Equal(t, 1, bad.status)
	assert.Contains(t, bad.stderr, "names no lease")
}

func TestCtrlCOfExecEndsTheCommandAndReleasesTheSlot(t *testing.T) {
	p := start(t, "1")
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		cmd := p.command("exec", "--", "sh", "-c", "echo begun; exec sleep 4242")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		begun := make([]byte, 6)
		_, err = io.ReadFull(out, begun)
		require.NoError(t, err, "output comes while the command runs")
		require.NoError(t, cmd.Process.Signal(signal))
		_, err = io.Copy(io.Discard, out)
		require.NoError(t, err)
		assert.Equal(t, exitInterrupted, p.wait(cmd), "%s", &stderr)
		assert.Empty(t, p.leases(), "%v", signal)
		assert.Empty(t, processes(t, "sleep\x004242\x00"), "%v", signal)
	}
}

// processes are those on this machine with exactly these arguments.
func processes(t *testing.T, cmdline string) []string {
	t.Helper()
	var found []string
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range all {
		if text, err := os.ReadFile(name); err == nil && string(text) == cmdline {
			found = append(found, name)
		}
	}
	return found
}

func TestExecWhoseReaderGoesAwayGivesItsSlotBack(t *testing.T) {
	p := start(t, "1")
	cmd := p.command("exec", "--", "yes")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = io.ReadFull(out, make([]byte, 100))
	require.NoError(t, err)
	require.NoError(t, out.Close())
	assert.Equal(t, exitPipe, p.wait(cmd))
	assert.Empty(t, p.leases())
}

func TestShellRunsTheLinesOfItsInput(t *testing.T) {
	p := start(t, "2")
	got := p.feed("cd /tmp; X=5\nfor i in 1 2\ndo echo $i $X\ndone\ncat <<EOF\nhi\nEOF\necho \"a\nb\"\npwd\n(exit 4)\n", "shell")
	assert.Equal(t, 4, got.status, got.stderr)
	assert.Equal(t, "1 5\n2 5\nhi\na\nb\n/tmp\n", got.stdout)
	assert.Empty(t, got.stderr, "no prompt where nobody types")
	got = p.feed("echo before\nexit 3\necho after\n", "shell")
	assert.Equal(t, ran{3, "before\n", ""}, got)
	got = p.feed("echo 'open\n", "shell")
	assert.NotZero(t, got.status)
	assert.Contains(t, got.stderr, "unexpected EOF")
	got = p.feed("true", "shell")
	assert.Equal(t, ran{}, got, "the last line need not end")
	assert.Empty(t, p.leases())
}

func TestWhatIsCancelledElsewhereSaysSo(t *testing.T) {
	p := start(t, "1")
	for _, command := range []string{"shell", "exec"} {
		lease := p.hold("a", nil)
		args := []string{"shell", "--lease", lease}
		if command == "exec" {
			args = []string{"exec", "--lease", lease, "--", "sh", "-c", "echo begun; sleep 1000"}
		}
		cmd := p.command(args...)
		cmd.Stdin = strings.NewReader("echo begun; sleep 1000\n")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		_, err = io.ReadFull(out, make([]byte, 6))
		require.NoError(t, err)
		require.Zero(t, p.run("release", lease).status)
		_, err = io.Copy(io.Discard, out)
		require.NoError(t, err)
		assert.Equal(t, exitFailed, p.wait(cmd), "%s: %s", command, &stderr)
		assert.Contains(t, stderr.String(), "\"berth slots\" lists the leases that hold", command)
	}
}

func TestCommandThatNeverRanWasNotCancelled(t *testing.T) {
	assert.NoError(t, cancelledElsewhere(t.Context(), nil, "lease", api.Result{}), "it has no receipt")
}
