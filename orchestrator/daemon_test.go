package orchestrator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator"
	"berth/orchestrator/strip"
	"berth/slots/sandbox/sandboxtest"
)

// envDaemon has the test's own binary be an orchestrator, and envClient one of
// its clients, that tests can kill.
const (
	envDaemon = "BERTH_TEST_DAEMON"
	envClient = "BERTH_TEST_CLIENT"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == strip.Role:
		os.Exit(strip.Main(os.Args[2]))
	case os.Getenv(envDaemon) != "":
		os.Exit(serve())
	case os.Getenv(envClient) != "":
		os.Exit(holdEverySlot(os.Getenv(envClient)))
	}
	os.Exit(m.Run())
}

// serve is an orchestrator process, with the settings of its arguments.
func serve() int {
	logger := hclog.New(&hclog.LoggerOptions{Output: os.Stderr})
	config, err := orchestrator.Parse(os.Args[1:], nil, os.Stderr)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		var server *orchestrator.Server
		if server, err = orchestrator.Open(ctx, config, "test", logger); err == nil {
			err = server.Run(ctx)
		}
	}
	if err != nil {
		logger.Error("ended", "error", err)
		return 1
	}
	return 0
}

// daemon is an orchestrator that runs in a process of its own.
type daemon struct {
	*instance
	process *exec.Cmd
	ended   chan struct{} // closed when the process has; err is valid then
	err     error
	took    time.Duration // until it was ready
}

// spawn starts an orchestrator process over the directory, like start. The
// test's end stops it, and everything that it started.
func spawn(t testing.TB, dir string, args ...string) *daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("real containers take seconds to start")
	}
	me, err := os.Executable()
	require.NoError(t, err)
	d := &daemon{
		instance: &instance{t: t, dir: dir, log: &locked{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4096}}},
		ended:    make(chan struct{}),
	}
	d.process = exec.CommandContext(context.WithoutCancel(t.Context()), me, append([]string{
		"--listen", "127.0.0.1:0", "--data-dir", dir, "--sandboxd", sandboxtest.Agent(t), "--isolation-require", "none",
		"--containers", "2", "--slots", "2", "--drain-timeout", "5s",
	}, args...)...)
	d.process.Env = append(os.Environ(), envDaemon+"=1")
	d.process.Stdout, d.process.Stderr = d.log, d.log
	began := time.Now()
	require.NoError(t, d.process.Start())
	go func() {
		d.err = d.process.Wait()
		close(d.ended)
	}()
	d.stop = func() {
		d.client.CloseIdleConnections()
		_ = d.process.Process.Signal(syscall.SIGTERM) // it may have ended
		d.wait()
	}
	t.Cleanup(d.stop)
	require.Eventually(t, func() bool {
		_, rest, found := strings.Cut(d.log.String(), "serving: ")
		_, rest, _ = strings.Cut(rest, "address=")
		address, _, whole := strings.Cut(rest, " ")
		d.url = "http://" + address
		return found && whole
	}, patience, time.Millisecond, "%s", d.log)
	require.Eventually(t, func() bool {
		r, err := d.try(http.MethodGet, "/readyz", nil)
		return err == nil && r.status == http.StatusOK
	}, patience, time.Millisecond, "%s", d.log)
	d.took = time.Since(began)
	return d
}

// kill ends the process without a warning. Its containers run on.
func (d *daemon) kill() {
	d.t.Helper()
	require.NoError(d.t, d.process.Process.Kill())
	d.wait()
}

func (d *daemon) wait() {
	select {
	case <-d.ended:
	case <-time.After(patience):
		assert.Fail(d.t, "it does not end", "%s", d.log)
		_ = d.process.Process.Kill() // so that the test ends
		<-d.ended
	}
}

// slots waits until the pool has so many.
func (d *daemon) slots(want int) {
	d.t.Helper()
	require.Eventually(d.t, func() bool {
		pool, _ := d.get("/status").object()["pool"].(map[string]any)
		return pool["available_slots"].(float64)+pool["acquired_slots"].(float64) == float64(want)
	}, patience, 10*time.Millisecond, "%s", d.log)
}

// allEnd is for the end of a test that killed orchestrators: whoever comes
// next ends what they left.
func (d *daemon) allEnd() {
	d.t.Helper()
	d.stop()
	assert.Empty(d.t, d.pids(), "containers are left")
}

// insist sends a call until its outcome is known, as a client does that gives
// its calls names: what did not come through, and what may be tried again, is
// sent again. to is whom it finds at the time. It returns the answer, and how
// often the call was sent.
func insist(to func() *instance, trajectory, id, command string) (answer reply, sent int, err error) {
	body := call(trajectory, id, command)
	body["timeout_s"] = 2 * patience.Seconds()
	for until := time.Now().Add(patience); ; {
		sent++
		answer, err = to().try(http.MethodPost, "/execute", body)
		if err == nil && answer.status == http.StatusOK && answer.metadata()["retryable"] != true {
			return answer, sent, nil
		}
		if time.Now().After(until) {
			return answer, sent, fmt.Errorf("not answered after %d tries: %w, %s", sent, err, answer.body)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// holdEverySlot is a client process that takes slots at the URL until there
// are none left, tells how many, and keeps them until it is killed.
func holdEverySlot(url string) int {
	ask := func(method, path, body string, into any) (status int, err error) {
		r, err := http.NewRequestWithContext(context.Background(), method, url+path, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		defer answer.Body.Close()
		return answer.StatusCode, json.NewDecoder(answer.Body).Decode(into)
	}
	var held []string
	for {
		var lease struct{ Lease string }
		status, err := ask(http.MethodPost, "/v1/leases", fmt.Sprintf(`{"trajectory":"holder-%d","ttl_s":3,"wait_s":0.01}`, len(held)), &lease)
		if err == nil && status == http.StatusTooManyRequests {
			break
		}
		if err == nil && status == http.StatusCreated {
			const mess = `echo mine > f; mkdir -p d/e; (setsid sleep 1000 > /dev/null 2>&1 &)`
			status, err = ask(http.MethodPost, "/v1/leases/"+lease.Lease+"/execute", `{"tool":"bash","args":{"command":"`+mess+`"}}`, &struct{}{})
		}
		if err != nil || status >= http.StatusMultipleChoices {
			fmt.Println(status, err)
			return 1
		}
		held = append(held, lease.Lease)
	}
	fmt.Println("held", len(held))
	for {
		for _, lease := range held {
			if status, err := ask(http.MethodPut, "/v1/leases/"+lease, `{"ttl_s":3}`, &struct{}{}); err != nil || status != http.StatusOK {
				fmt.Println(status, err)
				return 1
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
}
