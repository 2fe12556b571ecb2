package orchestrator_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

// metric reads one series of /metrics; -1: there is none.
func (i *instance) metric(series string) int {
	i.t.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\d+)$`).FindSubmatch(i.get("/metrics").body)
	if found == nil {
		return -1
	}
	n, err := strconv.Atoi(string(found[1]))
	require.NoError(i.t, err)
	return n
}

func TestWhoWaitsHearsWhyNoContainerStartsUntilOneDoes(t *testing.T) {
	dir := t.TempDir()
	program, mended := filepath.Join(dir, "sandboxd"), filepath.Join(dir, "mended")
	require.NoError(t, os.WriteFile(program, fmt.Appendf(nil,
		"#!/bin/sh\n[ -e %s ] || { echo 'the keel is broken' >&2; exit 1; }\nexec %s \"$@\"\n", mended, sandboxtest.Agent(t)), 0o700)) //nolint:gosec // it is a program
	i := start(t, sandboxtest.DataDir(t), "--sandboxd", program, "--containers", "0", "--max-containers", "1", "--trajectory-wait", "100ms")
	trouble := func() any {
		return i.get("/v1/pools").object()["pools"].([]any)[0].(map[string]any)["trouble"]
	}
	require.Nil(t, trouble())
	const failedInARow = `berth_pool_failed_starts{template="default"}`
	assert.Zero(t, i.metric(failedInARow))

	var r reply
	require.Eventually(t, func() bool {
		r = i.post("/v1/leases", object{"trajectory": "a", "wait_s": 1})
		return trouble() != nil
	}, patience, 10*time.Millisecond, "%s", i.log)
	r = i.post("/v1/leases", object{"trajectory": "a", "wait_s": 0.5})
	require.Equal(t, 429, r.status, "%s", r.body)
	assert.Equal(t, "pool_exhausted", r.fault()["kind"])
	assert.Equal(t, true, r.fault()["retryable"], "somebody may mend it")
	assert.Regexp(t, `^no slot of pool default is free: place 1 of 1 in the queue after \S+; the last container did not start \S+s ago \(.*\): .*the keel is broken`, r.fault()["message"])
	assert.Contains(t, r.fault()["queue"], "place")

	// Who does not know of pools reads it as well, where the error always was.
	call := i.post("/execute", call("b", "u", "true"))
	assert.Equal(t, false, call.object()["success"], "%s", call.body)
	assert.Contains(t, call.object()["error"], "the keel is broken")
	assert.Equal(t, "pool_exhausted", call.metadata()["error_kind"])

	told := trouble().(map[string]any)
	assert.Equal(t, []string{"failed_at", "failed_starts", "next_at", "words"}, keys(told))
	assert.Contains(t, told["words"], "the keel is broken")
	assert.Positive(t, told["failed_starts"])
	assert.Positive(t, i.metric(failedInARow))
	assert.Positive(t, i.metric(`berth_pool_starts_total{result="internal",template="default"}`))

	require.NoError(t, os.WriteFile(mended, nil, 0o600))
	r = i.post("/v1/leases", object{"trajectory": "a", "wait_s": patience.Seconds()})
	require.Equal(t, 201, r.status, "%s", r.body)
	assert.Nil(t, trouble())
	assert.Zero(t, i.metric(failedInARow))
	assert.Equal(t, 1, i.metric(`berth_pool_starts_total{result="ok",template="default"}`))
}
