package sandboxd_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/terminal"
	"berth/slots"
)

const soon = 30 * time.Second

// screen is a terminal at its client's end, with what it has shown so far.
type screen struct {
	*terminal.Session
	t    *testing.T
	read chan struct{} // closed when it shows nothing any more

	mu   sync.Mutex
	text strings.Builder
	from int
}

func onTerminal(t *testing.T, a *agenttest.Agent, slot string, want api.TerminalRequest) *screen {
	t.Helper()
	session, err := a.Terminal(t.Context(), slot, nil, want)
	require.NoError(t, err)
	x := &screen{Session: session, t: t, read: make(chan struct{})}
	t.Cleanup(func() { x.Close(); <-x.read })
	go func() {
		defer close(x.read)
		_, _ = io.Copy(x, session)
	}()
	return x
}

// Write takes what is shown.
func (x *screen) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.Write(p)
}

func (x *screen) shown() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.String()
}

func (x *screen) expect(text string) {
	x.t.Helper()
	require.Eventually(x.t, func() bool { return strings.Contains(x.shown()[x.from:], text) }, soon, 5*time.Millisecond, "%q is not in %q", text, x.shown())
	x.from += strings.Index(x.shown()[x.from:], text) + len(text)
}

func (x *screen) typed(text string) {
	x.t.Helper()
	_, err := x.Session.Write([]byte(text))
	require.NoError(x.t, err)
}

// sleepers counts the processes that sleep so long.
func sleepers(mark string) int {
	n := 0
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), "sleep\x00"+mark) {
			n++
		}
	}
	return n
}

func requireSleepers(t *testing.T, mark string, want int) {
	t.Helper()
	require.Eventually(t, func() bool { return sleepers(mark) == want }, soon, 10*time.Millisecond)
}

func TestATerminalOverTheWire(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	x := onTerminal(t, a, "slot_0", api.TerminalRequest{WindowSize: api.WindowSize{Columns: 100, Rows: 30}, Term: "xterm-256color"})
	x.typed("PS1='ready> '; stty size; echo $TERM; pwd\r")
	x.expect("30 100\r\nxterm-256color\r\n/workspace\r\n")
	require.NoError(t, x.Resize(api.WindowSize{Columns: 61, Rows: 17}))
	x.typed("stty size\r")
	x.expect("17 61\r\n")
	mark := "77031.1"
	x.typed("sleep " + mark + "\r")
	requireSleepers(t, mark, 1)
	x.typed("\x03")
	requireSleepers(t, mark, 0)
	x.typed("echo $?\r")
	x.expect("130\r\n")
	other := onTerminal(t, a, "slot_1", api.TerminalRequest{Command: "echo one; cat", Cwd: "/tmp"})
	other.expect("one\r\n")
	other.typed("two\r\x04")
	other.expect("two\r\ntwo\r\n")
	<-other.read
	exit, err := other.Wait()
	require.NoError(t, err)
	assert.Equal(t, slots.OutcomeExited, exit.Outcome)
	x.typed("exit 9\r")
	<-x.read
	exit, err = x.Wait()
	require.NoError(t, err)
	assert.Equal(t, 9, exit.ExitCode)
	assert.Positive(t, exit.DurationMS)
}

func TestATerminalThatIsRefusedIsATypedError(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	ask := func(slot string, token *uint64, want api.TerminalRequest) slots.Kind {
		t.Helper()
		session, err := a.Terminal(t.Context(), slot, token, want)
		if session != nil {
			session.Close()
		}
		require.Error(t, err)
		return slots.AsError(err).Kind
	}
	assert.Equal(t, slots.KindNotFound, ask("slot_9", nil, api.TerminalRequest{}))
	assert.Equal(t, slots.KindFenced, ask("slot_0", new(uint64(7)), api.TerminalRequest{}))
	assert.Equal(t, slots.KindBadRequest, ask("slot_0", nil, api.TerminalRequest{WindowSize: api.WindowSize{Columns: -1, Rows: 3}}))
	assert.Equal(t, slots.KindBadRequest, ask("slot_0", nil, api.TerminalRequest{WindowSize: api.WindowSize{Columns: 70_000, Rows: 3}}))
	assert.Equal(t, slots.KindBadRequest, ask("slot_0", nil, api.TerminalRequest{Cwd: "nowhere"}))
	assert.Equal(t, slots.KindBadRequest, ask("slot_0", nil, api.TerminalRequest{Command: "a\x00b"}))
	assert.Equal(t, slots.KindBadRequest, ask("slot_0", nil, api.TerminalRequest{Term: "no\nterm"}))
	const path = "/v1/slots/slot_0/terminal"
	upgrade := []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="}
	for _, c := range []struct {
		path    string
		headers []string
		status  int
		kind    slots.Kind
	}{
		{path, nil, 400, slots.KindBadRequest},
		{path, append([]string{"Authorization: none"}, upgrade...), 401, slots.KindUnauthorized},
		{path, append([]string{"Origin: http://elsewhere.example"}, upgrade...), 403, slots.KindDenied},
		{path, append([]string{"Origin: ::"}, upgrade...), 403, slots.KindDenied},
		{path + "?cols=wide", upgrade, 400, slots.KindBadRequest},
		{path + "?cols=8&cols=9", upgrade, 400, slots.KindBadRequest},
		{path + "?color=red", upgrade, 400, slots.KindBadRequest},
		{path, append([]string{api.HeaderToken + ": x"}, upgrade...), 400, slots.KindBadRequest},
		{path, []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"}, 400, slots.KindBadRequest},
		{path, []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 8", upgrade[3]}, 400, slots.KindBadRequest},
	} {
		answer := a.Send(t, http.MethodGet, c.path, "", c.headers...)
		assert.Equal(t, c.status, answer.Status, "%s %q: %s", c.path, c.headers, answer.Body)
		assert.Contains(t, string(answer.Body), `"kind":"`+string(c.kind)+`"`, "%s %q", c.path, c.headers)
	}
	var open []*screen
	for range 8 {
		open = append(open, onTerminal(t, a, "slot_1", api.TerminalRequest{}))
	}
	assert.Equal(t, slots.KindConflict, ask("slot_1", nil, api.TerminalRequest{}), "it has enough of them")
	open[0].Close()
	require.Eventually(t, func() bool {
		session, err := a.Terminal(t.Context(), "slot_1", nil, api.TerminalRequest{Command: "true"})
		if err == nil {
			session.Close()
		}
		return err == nil
	}, soon, 10*time.Millisecond)
}

// raw is a WebSocket that does not behave.
func raw(t *testing.T, a *agenttest.Agent, command string) *websocket.Conn {
	t.Helper()
	conn, answer, err := websocket.DefaultDialer.DialContext(t.Context(),
		strings.Replace(a.URL, "http", "ws", 1)+"/v1/slots/slot_0/terminal?command="+url.QueryEscape(command),
		http.Header{"Authorization": {"Bearer " + a.Token}})
	require.NoError(t, err)
	answer.Body.Close()
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestAClientThatGoesAwayTakesItsTerminalAlong(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	for n, c := range []struct {
		what  string
		leave func(conn *websocket.Conn) error
	}{
		{"its connection breaks", func(conn *websocket.Conn) error { return conn.NetConn().Close() }},
		{"it says no known word", func(conn *websocket.Conn) error { return conn.WriteMessage(websocket.TextMessage, []byte(`{"x":1}`)) }},
		{"it says no word at all", func(conn *websocket.Conn) error { return conn.WriteMessage(websocket.TextMessage, []byte("\xff{")) }},
		{"it wants a window of no size", func(conn *websocket.Conn) error {
			return conn.WriteMessage(websocket.TextMessage, []byte(`{"resize":{"cols":0,"rows":5}}`))
		}},
		{"it says too much at once", func(conn *websocket.Conn) error { return conn.WriteMessage(websocket.TextMessage, make([]byte, 2<<20)) }},
		{"it breaks the protocol", func(conn *websocket.Conn) error {
			_, err := conn.NetConn().Write([]byte("\xff\xff\xff\xff no frame"))
			return err
		}},
	} {
		mark := fmt.Sprintf("77032.%d", n)
		conn := raw(t, a, "trap '' HUP TERM INT; setsid sleep "+mark+" & sleep "+mark)
		requireSleepers(t, mark, 2)
		_ = c.leave(conn) // the other side may be faster
		require.Eventually(t, func() bool { return sleepers(mark) == 0 }, soon, 10*time.Millisecond, c.what)
	}
	assert.Equal(t, "still here", bash(t, a, "echo still here")["output"])
}

func TestATerminalEndsWithItsSlotAndSaysWhy(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	x := onTerminal(t, a, "slot_0", api.TerminalRequest{Command: "echo there; sleep 77033.1"})
	x.expect("there")
	_, err := a.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	<-x.read
	_, err = x.Wait()
	assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind)
	assert.Zero(t, sleepers("77033.1"))

	lease, err := a.Acquire(t.Context(), "slot_1", api.LeaseRequest{Trajectory: "a", TTLSeconds: 2})
	require.NoError(t, err)
	session, err := a.Terminal(t.Context(), "slot_1", &lease.Token, api.TerminalRequest{})
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, session)
	_, err = session.Wait()
	assert.Equal(t, slots.KindLeaseExpired, slots.AsError(err).Kind)
	require.NoError(t, session.Close())
}

func TestATerminalEndsWithItsLeaseAlsoWhenTheSlotStaysAsItIs(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	lease, err := a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "one", TTLSeconds: 3600})
	require.NoError(t, err)
	session, err := a.Terminal(t.Context(), "slot_0", &lease.Token, api.TerminalRequest{})
	require.NoError(t, err)
	_, err = a.Release(t.Context(), "slot_0", api.LeaseRelease{Token: lease.Token, Reset: new(false)})
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, session)
	_, err = session.Wait()
	assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind, "%v", err)
	require.Eventually(t, func() bool {
		_, err = a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "two", TTLSeconds: 60})
		return err == nil
	}, soon, 10*time.Millisecond, "%v", err)
}

func TestADrainTellsTerminals(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--drain-timeout", "1s"}})
	x := onTerminal(t, a, "slot_0", api.TerminalRequest{Command: "echo there; sleep 77034.1"})
	x.expect("there")
	require.NoError(t, syscall.Kill(a.PID, syscall.SIGTERM))
	<-x.read
	_, err := x.Wait()
	assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind, "%v", err)
	a.Stop(t)
	assert.Zero(t, sleepers("77034.1"))
}

// residentBytes is the memory that the agent has.
func residentBytes(t *testing.T, a *agenttest.Agent) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", a.PID))
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

func TestAFloodedTerminalCostsItsOwnSlotOnly(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	before := residentBytes(t, a)
	for range 3 { // whose clients never read
		raw(t, a, "exec yes this-is-not-read-by-anybody")
	}
	x := onTerminal(t, a, "slot_0", api.TerminalRequest{Command: "exec yes 0123456789012345678901234567890123456789"})
	require.Eventually(t, func() bool { return len(x.shown()) > 8<<20 }, soon, 10*time.Millisecond, "who reads gets it")
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for range 20 {
		r, err := a.Execute(ctx, call("slot_1", "", "echo fine", 10))
		require.NoError(t, err)
		require.Equal(t, "fine", r.Output)
	}
	assert.Less(t, residentBytes(t, a)-before, 48<<20, "nothing is kept for who does not read")
	x.typed("\x03")
	<-x.read
	exit, err := x.Wait()
	require.NoError(t, err)
	assert.Equal(t, "SIGINT", exit.Signal)
}
