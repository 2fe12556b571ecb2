package main

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// window is a terminal of somebody who works in a slot.
type window struct {
	t      *testing.T
	p      *pool
	cmd    *exec.Cmd
	tty    *os.File
	screen lockedBuffer
	read   chan struct{} // closed when nothing is shown any more
	from   int
}

func openWindow(t *testing.T, p *pool, args ...string) *window {
	t.Helper()
	w := &window{t: t, p: p, cmd: p.command(append([]string{"shell"}, args...)...), read: make(chan struct{})}
	w.cmd.Env = append(w.cmd.Env, "TERM=xterm-256color")
	var err error
	w.tty, err = pty.StartWithSize(w.cmd, &pty.Winsize{Cols: 90, Rows: 28})
	require.NoError(t, err)
	t.Cleanup(func() { w.tty.Close() })
	go func() { // ends with the terminal
		defer close(w.read)
		_, _ = io.Copy(&w.screen, w.tty)
	}()
	return w
}

func (w *window) expect(text string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return strings.Contains(w.screen.String()[w.from:], text) }, patience, 10*time.Millisecond,
		"%q is not in %q", text, &w.screen)
	w.from += strings.Index(w.screen.String()[w.from:], text) + len(text)
}

func (w *window) typed(text string) {
	w.t.Helper()
	_, err := io.WriteString(w.tty, text)
	require.NoError(w.t, err)
}

func (w *window) ends() (status int) {
	w.t.Helper()
	status = w.p.wait(w.cmd)
	<-w.read
	return status
}

func TestShellOnATerminal(t *testing.T) {
	p := start(t, "1")
	w := openWindow(t, p)
	w.typed("PS1='re''ady> '; stty size; echo $TERM; tty | cut -c1-9; pwd\r")
	w.expect("28 90\r\nxterm-256color\r\n/dev/pts/\r\n/workspace\r\n")
	w.expect("ready> ")
	require.NoError(t, pty.Setsize(w.tty, &pty.Winsize{Cols: 120, Rows: 50}))
	w.typed("until [ \"$(stty size)\" = '50 120' ]; do sleep 0.05; done; echo res''ized\r")
	w.expect("resized\r\n")
	w.typed("echo co''oked; cat\r")
	w.expect("cooked\r\n")
	w.typed("twice\r")
	w.expect("twice\r\ntwice\r\n")
	w.typed("\x03")
	w.expect("ready> ")
	w.typed("echo status $?\r")
	w.expect("status 130\r\n")
	w.typed("~~ not at all\rexit 5\r")
	w.expect("~ not at all")
	assert.Equal(t, 5, w.ends(), "%s", &w.screen)
	assert.Empty(t, p.leases())

	w = openWindow(t, p, "--cwd", "/tmp", "--", "sh", "-c", `pwd; echo "$1"; kill -9 $$`, "sh", "two  words")
	assert.Equal(t, 128+9, w.ends())
	assert.Equal(t, "/tmp\r\ntwo  words\r\n", w.screen.String())
	assert.Empty(t, p.leases())
}

func TestShellOnATerminalLeavesWhenItIsTold(t *testing.T) {
	p := start(t, "1")
	w := openWindow(t, p)
	w.typed("PS1='re''ady> '; trap '' INT HUP TERM\r")
	w.expect("ready> ")
	w.typed("sleep 1000\r")
	w.typed("\r~.")
	assert.Equal(t, exitInterrupted, w.ends(), "%s", &w.screen)
	assert.Contains(t, w.screen.String(), "left the terminal")
	assert.Empty(t, p.leases())

	lease := p.hold("a", nil)
	w = openWindow(t, p, "--lease", lease)
	w.typed("echo th''ere\r")
	w.expect("there\r\n")
	require.Zero(t, p.run("release", lease).status)
	assert.Equal(t, exitFailed, w.ends(), "%s", &w.screen)
	assert.Contains(t, w.screen.String(), "\"berth slots\" lists the leases that hold")
}

func TestTerminalThroughThePool(t *testing.T) {
	p := start(t, "2")
	_, err := p.client.Terminal(t.Context(), "nowhere:slot_0:1", api.TerminalRequest{})
	assert.Equal(t, slots.KindSlotLost, slots.AsError(err).Kind, "%v", err)
	_, err = p.client.Terminal(t.Context(), p.hold("a", nil), api.TerminalRequest{Cwd: "nowhere"})
	assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "the container's reason: %v", err)
	stranger, err := client.New(client.Config{URL: p.said["url"].(string), Token: "wrong"})
	require.NoError(t, err)
	_, err = stranger.Terminal(t.Context(), p.hold("a", nil), api.TerminalRequest{})
	assert.Equal(t, slots.KindUnauthorized, slots.AsError(err).Kind, "%v", err)

	short, err := p.client.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: "b", TTLSeconds: 1})
	require.NoError(t, err)
	session, err := p.client.Terminal(t.Context(), short.ID, api.TerminalRequest{Command: "sleep 3; echo still here"})
	require.NoError(t, err)
	text, err := io.ReadAll(session)
	require.NoError(t, err)
	exit, err := session.Wait()
	require.NoError(t, err, "its lease is renewed meanwhile")
	assert.Zero(t, exit.ExitCode)
	assert.Equal(t, "still here\r\n", string(text))
	require.NoError(t, session.Close())

	session, err = p.client.Terminal(t.Context(), p.hold("a", nil), api.TerminalRequest{})
	require.NoError(t, err)
	told := make(chan error, 1)
	go func() { // ends with the session
		_, _ = io.Copy(io.Discard, session)
		_, err := session.Wait()
		told <- err
	}()
	p.stop()
	err = <-told
	require.Error(t, err)
	assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind, "a server that stops says so")
}

func TestShellRefusesACommandWithoutATerminal(t *testing.T) {
	b := newBerth(t)
	for _, args := range [][]string{{"shell", "--", "top"}, {"shell", "--cwd", "/tmp"}} {
		got := b.run(args...)
		assert.Equal(t, exitUsage, got.status)
		assert.Contains(t, got.stderr, "berth exec", "%q", args)
	}
	assert.Equal(t, exitUsage, b.run("shell", "top").status)
}

func TestEscapeIsFoundAtTheBeginningOfALineOnly(t *testing.T) {
	for _, c := range []struct {
		typed, passed string
		leave         bool
	}{
		{"~.", "", true},
		{"ls\r~.rest", "ls\r", true},
		{"a~.", "a~.", false},
		{"~~.\r", "~.\r", false},
		{"~x\r~.", "~x\r", true},
		{"~\r~.", "~\r", true},
		{"", "", false},
	} {
		for _, apart := range []bool{false, true} {
			e, passed, leave := escape{atStart: true}, "", false
			pieces := []string{c.typed}
			if apart {
				pieces = strings.Split(c.typed, "")
			}
			for _, piece := range pieces {
				text, now := e.pass([]byte(piece))
				passed += string(text)
				if leave = now; leave {
					break
				}
			}
			assert.Equal(t, c.passed, passed, "%q", c.typed)
			assert.Equal(t, c.leave, leave, "%q", c.typed)
		}
	}
}
