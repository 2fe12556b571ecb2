package orchestrator_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

// cutter is a TCP proxy that cuts off a part of the answers: their requests
// went through, and of them some bytes at most come.
type cutter struct {
	listener net.Listener
	to       string
	percent  int // of the answers that are cut off
	cut      atomic.Int64
	work     sync.WaitGroup
}

// cutting runs a cutter in front of the address until the test ends.
func cutting(t testing.TB, to string, percent int) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{listener: listener, to: to, percent: percent}
	c.work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.work.Go(func() { c.pass(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		c.work.Wait()
	})
	return c
}

// pass carries one connection. An answer is short, so that what can be read at
// once of one is all of it.
func (c *cutter) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer to.Close()
	c.work.Go(func() {
		defer to.Close()
		_, _ = io.Copy(to, from) // its end is the connection's
	})
	answer := make([]byte, 64<<10)
	for {
		n, err := to.Read(answer)
		if n > 0 && rand.IntN(100) < c.percent {
			c.cut.Add(1)
			_, _ = from.Write(answer[:rand.IntN(n)]) // it is cut off either way
			return
		}
		if n > 0 {
			_, err = from.Write(answer[:n])
		}
		if err != nil {
			return
		}
	}
}

// times is a number that the environment may raise.
func times(t testing.TB, byDefault int, variable string) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

func TestOfAnswersThatAreCutOffNoCallIsLostOrRunsTwice(t *testing.T) {
	const trajectories = 32
	appends := times(t, 1500, "BERTH_TEST_APPENDS")
	i := start(t, sandboxtest.DataDir(t), "--containers", "2", "--slots", fmt.Sprint(trajectories/2))
	proxy := cutting(t, strings.TrimPrefix(i.url, "http://"), 20)
	far := *i // the orchestrator behind the proxy
	far.url = "http://" + proxy.listener.Addr().String()
	far.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: trajectories}}
	defer far.client.CloseIdleConnections()
	began := time.Now()
	var group sync.WaitGroup
	var tries atomic.Int64
	for n := range trajectories {
		group.Go(func() {
			for k := n; k < appends; k += trajectories {
				answer, sent, err := insist(func() *instance { return &far }, fmt.Sprint("t", n), fmt.Sprint(k), fmt.Sprintf("echo %d >> log", k))
				tries.Add(int64(sent))
				if !assert.NoError(t, err) || !assert.Equal(t, true, answer.object()["success"], "%s", answer.body) { //nolint:testifylint // not in a goroutine
					return
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d appends, sent %d times, %d answers cut off: %v", appends, tries.Load(), proxy.cut.Load(), time.Since(began))
	assert.Greater(t, proxy.cut.Load(), int64(appends/10), "it cuts")
	lines := 0
	for n := range trajectories {
		log := strings.Fields(i.run(fmt.Sprint("t", n), "cat log"))
		lines += len(log)
		for place, line := range log {
			require.Equal(t, strconv.Itoa(n+place*trajectories), line, "line %d of trajectory %d", place, n)
		}
	}
	assert.Equal(t, appends, lines)
}

func TestThousandsOfCallsInFlightFromOneClientAllSucceed(t *testing.T) {
	const calls, slots = 2000, 32
	// Slots without isolation reach the gate.
	i := start(t, sandboxtest.DataDir(t), "--containers", "2", "--slots", fmt.Sprint(slots/2), "--sandboxd-arg", "--isolation-attempt=none")
	gate := filepath.Join(shared(t), "gate")
	shut(t, gate)
	var group sync.WaitGroup
	var failed atomic.Int64
	send := func(n int, command string) {
		body := call(fmt.Sprint("t", n%slots), fmt.Sprint(n), command+"echo "+strconv.Itoa(n))
		body["timeout_s"] = 2 * patience.Seconds()
		r, err := i.try(http.MethodPost, "/execute", body)
		if err != nil || r.object()["output"] != strconv.Itoa(n) {
			failed.Add(1)
			t.Logf("%v: %s", err, r.body)
		}
	}
	sent := func() (n int) {
		for line := range strings.Lines(string(i.get("/metrics").body)) {
			for _, name := range []string{"berth_dispatch_sent ", "berth_dispatch_waiting "} {
				if text, found := strings.CutPrefix(strings.TrimSpace(line), name); found {
					v, err := strconv.Atoi(text)
					require.NoError(t, err)
					n += v
				}
			}
		}
		return n
	}
	for n := range slots {
		group.Go(func() { send(n, ": < "+gate+"; ") })
	}
	require.Eventually(t, func() bool { return sent() == slots }, patience, 50*time.Millisecond, "all slots are at the gate")
	for n := slots; n < calls; n++ {
		group.Go(func() { send(n, "") })
	}
	require.Eventually(t, func() bool { return sent() == calls }, patience, 50*time.Millisecond, "they are in flight")
	began := time.Now()
	open(t, gate)
	group.Wait()
	t.Logf("%d calls in flight on %d slots: all ended within %v", calls, slots, time.Since(began))
	assert.Zero(t, failed.Load())
}
