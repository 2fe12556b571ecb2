package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

func TestNewPanicsWithoutACollaborator(t *testing.T) {
	assert.Panics(t, func() { New(Deps{}, Config{}) })
}

func TestServeEndsWithTheListenersError(t *testing.T) {
	server := New(newFakeKeeper(t).deps(&lockedBuffer{}), Config{})
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	assert.ErrorContains(t, server.Serve(t.Context(), ln), "serve http")
}

func TestServeLetsRequestsFinishAndTakesNoMore(t *testing.T) {
	c := start(t, Config{Token: testToken})
	release := make(chan struct{})
	c.run = func(context.Context, api.Call, io.Writer, io.Writer) api.Result { <-release; return ran("late") }
	got := c.later(t.Context(), http.MethodPost, "/execute", call("f1"))
	require.Eventually(t, func() bool { _, ok := c.Get("f1"); return ok }, 30*time.Second, time.Millisecond)
	idle, _ := dial(t, c.addr)
	c.stop()
	require.Eventually(t, func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 30*time.Second, time.Millisecond)
	_, err := idle.Read(make([]byte, 1))
	require.Error(t, err, "who waits for nothing is not waited for")
	close(release)
	a := <-got
	assert.Equal(t, 200, a.code)
	assert.Contains(t, a.body, "late")
}

func TestReadinessFollowsTheSlotsAndLivenessDoesNot(t *testing.T) {
	c := start(t, Config{Token: testToken})
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/readyz", "").code)
	c.mu.Lock()
	c.notYet, c.health.Status = true, "draining"
	c.mu.Unlock()
	a := c.ask(t, http.MethodGet, "/readyz", "")
	assert.Equal(t, 503, a.code)
	assert.JSONEq(t, `{"status":"draining"}`, a.body)
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/livez", "").code)
	assert.Contains(t, c.ask(t, http.MethodGet, "/health", "").body, `"status":"draining"`)
}

func TestLeasesAreGivenRenewedListedAndReleased(t *testing.T) {
	c := start(t, Config{Token: testToken})
	var lease slots.Lease
	a := c.ask(t, http.MethodPost, "/v1/slots/slot_0/lease", `{"trajectory":"t1","ttl_s":60,"labels":{"run":"7"},"expected_token":0}`)
	require.Equal(t, 200, a.code, a.body)
	a.decode(t, &lease)
	assert.EqualValues(t, 1, lease.Token)
	assert.Equal(t, time.Minute, lease.TTL)
	for _, w := range []wire{
		{"taken", http.MethodPost, "/v1/slots/slot_0/lease", `{"trajectory":"t2","ttl_s":60}`, 409, `{"error":{"kind":"conflict","message":"slot is leased: slot_0","retryable":false,"executed":"never"}}`},
		{"none free", http.MethodPost, "/v1/leases", `{"trajectory":"t2","ttl_s":60}`, 429, `{"error":{"kind":"pool_exhausted","message":"no slot is free","retryable":true,"executed":"never"}}`},
		{"unknown slot", http.MethodPut, "/v1/slots/slot_7/lease", `{"token":1}`, 404, `{"error":{"kind":"not_found","message":"Unknown slot: slot_7","retryable":false,"executed":"never"}}`},
		{"a stranger's token", http.MethodPut, "/v1/slots/slot_0/lease", `{"token":2,"ttl_s":5}`, 409, `{"error":{"kind":"fenced","message":"token 2 does not hold slot slot_0","retryable":false,"executed":"never"}}`},
		{"no token", http.MethodDelete, "/v1/slots/slot_0/lease", `{}`, 409, `{"error":{"kind":"fenced","message":"token 0 does not hold slot slot_0","retryable":false,"executed":"never"}}`},
		{"no body", http.MethodDelete, "/v1/slots/slot_0/lease", ``, 400, `{"error":{"kind":"bad_request","message":"request body must be a JSON object","retryable":false,"executed":"never"}}`},
		{"a field that is not known", http.MethodPost, "/v1/leases", `{"trajektory":"x"}`, 400, `{"error":{"kind":"bad_request","message":"unknown field \"trajektory\"","retryable":false,"executed":"never"}}`},
		{"a wrong type", http.MethodPost, "/v1/leases", `{"ttl_s":"x"}`, 400, `{"error":{"kind":"bad_request","message":"ttl_s must be a number","retryable":false,"executed":"never"}}`},
	} {
		t.Run(w.name, func(t *testing.T) { w.run(t, c) })
	}
	assert.Equal(t, 200, c.ask(t, http.MethodPut, "/v1/slots/slot_0/lease", `{"token":1,"ttl_s":120}`).code)
	assert.Contains(t, c.ask(t, http.MethodGet, "/v1/leases", "").body, `"ttl_s":120`)
	a = c.ask(t, http.MethodPost, "/reset", `{"slot_id":"slot_0"}`)
	assert.Contains(t, a.body, `"error_kind":"fenced"`)
	assert.Contains(t, c.ask(t, http.MethodPost, "/reset", `{"slot_id":"slot_0","token":1}`).body, `"success":true`)
	assert.Contains(t, c.ask(t, http.MethodPost, "/artifacts/list", `{"slot_id":"slot_0"}`).body, `"error_kind":"fenced"`)
	assert.Equal(t, 200, c.ask(t, http.MethodPost, "/artifacts/list", `{"slot_id":"slot_0","token":1}`).code)
	assert.Equal(t, 409, c.ask(t, http.MethodGet, "/slots/slot_0/files/?tar=1", "").code)
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/slots/slot_0/files/?tar=1", "", "Berth-Token: 1").code)
	assert.JSONEq(t, `{"slot_id":"slot_0","reset":{"clean":true,"generation":1,"checks":null,"ms":0}}`,
		c.ask(t, http.MethodDelete, "/v1/slots/slot_0/lease", `{"token":1}`).body)
	assert.JSONEq(t, `{"slot_id":"slot_0"}`, c.ask(t, http.MethodDelete, "/v1/slots/slot_0/lease", `{"token":1,"reset":false}`).body)
	assert.JSONEq(t, `{"leases":[]}`, c.ask(t, http.MethodGet, "/v1/leases", "").body)
	assert.Equal(t, 200, c.ask(t, http.MethodPost, "/v1/leases", `{"trajectory":"t2","ttl_s":60}`).code)
}

func TestMetricsHaveBoundedLabels(t *testing.T) {
	c := start(t, Config{Token: testToken})
	for _, tool := range []string{"bash", "x1", "x2"} {
		r := ran("")
		c.server.Metrics.ExecutionEnded(tool, &r)
	}
	refused := api.Refused("", slots.Errorf(slots.KindQueueTimeout, "x"))
	c.server.Metrics.ExecutionEnded("bash", &refused)
	c.server.Metrics.ExecutionEnded("bash", &api.Result{Success: true})
	c.server.Metrics.ResetEnded(true, time.Millisecond)
	c.ask(t, http.MethodGet, "/slots/slot_0/files/secret-name", "")
	c.ask(t, "BREW", "/teapot", "")
	a := c.ask(t, http.MethodGet, "/metrics", "")
	assert.Equal(t, 200, a.code)
	assert.True(t, strings.HasPrefix(a.header.Get("Content-Type"), "text/plain; version=0.0.4"))
	for _, line := range []string{
		`berth_executions_total{outcome="exited",tool="bash"} 1`,
		`berth_executions_total{outcome="exited",tool="other"} 2`,
		`berth_executions_total{outcome="queue_timeout",tool="bash"} 1`,
		`berth_executions_total{outcome="ok",tool="bash"} 1`,
		`berth_slots{state="available"} 2`,
		`berth_slots{state="quarantined"} 0`,
		`berth_isolation_level{level="none"} 0`,
		`berth_http_requests_total{class="4xx",method="GET",route="/slots/:slot/files/*"} 1`,
		`berth_http_requests_total{class="4xx",method="any",route="other"} 1`,
		`berth_reset_seconds_count{clean="true"} 1`,
		"berth_execution_spawn_seconds_count 3", "berth_execution_queue_seconds_count 5",
		"berth_journal_failing 0", "berth_http_connections 1", "go_goroutines ", "process_open_fds ",
	} {
		assert.Contains(t, a.body, line)
	}
	c.journalErr = errors.New("disk is full")
	assert.Contains(t, c.ask(t, http.MethodGet, "/metrics", "").body, "berth_journal_failing 1")
	assert.NotContains(t, a.body, "secret-name")
	assert.NotContains(t, a.body, "BREW")
	assert.NotContains(t, a.body, "x1")
}

func TestNothingOfACallIsLogged(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.mu.Lock()
	c.doFails = slots.Errorf(slots.KindInternal, "disk on fire")
	c.mu.Unlock()
	c.ask(t, http.MethodPost, "/execute", `{"slot_id":"slot_0","tool":"bash","args":{"command":"echo hunter2"}}`)
	c.ask(t, http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"hunter2"}`)
	assert.NotContains(t, c.logs.String(), "hunter2")
	assert.NotContains(t, c.logs.String(), testToken)
	assert.Equal(t, 1, strings.Count(c.logs.String(), "disk on fire"), "an internal error is logged once")
}

func TestASlowReaderIsGivenUp(t *testing.T) {
	c := start(t, Config{Token: testToken, Stall: 200 * time.Millisecond})
	c.file(t, "big", strings.Repeat("x", 32<<20))
	conn, _ := dial(t, c.addr)
	tcp, ok := conn.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, tcp.SetReadBuffer(4096))
	_, err := conn.Write([]byte("GET /slots/slot_0/files/big HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + testToken + "\r\n\r\n"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return c.server.conns.count() == 1 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return c.server.conns.count() == 0 }, 30*time.Second, 10*time.Millisecond)
}
