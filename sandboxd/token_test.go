package sandboxd_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/client"
	"berth/slots/sandbox/sandboxtest"
)

// answers is the status that a request with the token gets.
func answers(t *testing.T, a *agenttest.Agent, token string) int {
	t.Helper()
	return answersOf(t, a, "/slots", token)
}

func answersOf(t *testing.T, a *agenttest.Agent, route, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.URL+route, nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res.StatusCode
}

// rotate writes another token and has the agent read it.
func rotate(t *testing.T, a *agenttest.Agent, token string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(a.Dir, "token"), []byte(token), 0o600))
	reload(t, a)
}

// reload has the agent read its tokens.
func reload(t *testing.T, a *agenttest.Agent) {
	t.Helper()
	before := strings.Count(a.Log(), "reload")
	require.NoError(t, syscall.Kill(a.PID, syscall.SIGHUP))
	require.Eventually(t, func() bool { return strings.Count(a.Log(), "reload") > before }, time.Minute, 5*time.Millisecond)
}

func TestATokenIsRotatedByASignalWhileWorkGoesOn(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--token-grace", "1h"}})
	begun, last := lastEvent(t, a, call("slot_0", "", "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo ended", 120))
	<-begun
	rotate(t, a, "second")
	assert.Equal(t, http.StatusOK, answers(t, a, "second"))
	assert.Equal(t, http.StatusOK, answers(t, a, a.Token), "within the grace")
	assert.Equal(t, http.StatusUnauthorized, answers(t, a, "none"))
	c, err := client.New(client.Config{URL: a.URL, Token: "second"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	_, err = c.PutFile(t.Context(), client.Place{SlotID: "slot_0", Path: "go"}, strings.NewReader("x"), client.PutOptions{})
	require.NoError(t, err)
	e := <-last
	require.NotNil(t, e.Result)
	assert.Equal(t, "begun\nended", e.Result.Output, "a call that was under way ends as if nothing had happened")

	rotate(t, a, "third")
	assert.Equal(t, http.StatusOK, answers(t, a, "third"))
	assert.Equal(t, http.StatusOK, answers(t, a, "second"))
	assert.Equal(t, http.StatusUnauthorized, answers(t, a, a.Token), "one token before is good, not two")
}

func TestATokenEndsWithItsGrace(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--token-grace", "300ms"}})
	rotate(t, a, "second")
	assert.Eventually(t, func() bool { return answers(t, a, a.Token) == http.StatusUnauthorized }, time.Minute, 20*time.Millisecond)
	assert.Equal(t, http.StatusOK, answers(t, a, "second"))
}

func TestAFileWithoutATokenChangesNothing(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	rotate(t, a, "\n")
	assert.Equal(t, http.StatusOK, answers(t, a, a.Token))
	assert.Equal(t, http.StatusUnauthorized, answers(t, a, ""))
	assert.Contains(t, a.Log(), "is empty")
}

func TestTheTokenOfMetricsIsReadAgainAndNoSlotReadsIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(sandboxtest.DataDir(t), "metrics") // slots pass through what is above it
	write := func(token string) { require.NoError(t, os.WriteFile(path, []byte(token), 0o600)) }
	write("\n")
	a := best(t, agenttest.Options{Args: []string{"--metrics-token-file", path, "--token-grace", "1h"}})
	metrics := func(token string) int { return answersOf(t, a, "/metrics", token) }
	assert.Equal(t, http.StatusUnauthorized, metrics(""), "an empty file is no token")
	assert.Equal(t, http.StatusOK, metrics(a.Token))

	write("looks-on\n")
	reload(t, a)
	assert.Equal(t, http.StatusOK, metrics("looks-on"))
	assert.Equal(t, http.StatusUnauthorized, answers(t, a, "looks-on"))
	shown := a.Bash(t, "slot_0", "cat "+path+"; ls -la "+filepath.Dir(path)+"; echo ended", 30)
	assert.Contains(t, shown.Output, "ended")
	assert.NotContains(t, shown.Output, "looks-on")

	write(a.Token)
	reload(t, a)
	assert.Contains(t, a.Log(), "opens more than metrics")
	assert.Equal(t, http.StatusOK, metrics("looks-on"), "the one before stays where there is none that can be used")
	write("")
	reload(t, a)
	assert.Equal(t, http.StatusUnauthorized, metrics("looks-on"), "one that is taken away ends at once")
	assert.Equal(t, http.StatusUnauthorized, metrics(""))
	assert.Contains(t, a.Log(), "MetricsTokenFile:(redacted)")
}
