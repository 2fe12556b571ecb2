package client_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/client"
)

func TestAWaitGoesOnUntilTheEnd(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NotEmpty(t, r.URL.Query().Get("wait_s"))
		if asked.Add(1) < 3 {
			fmt.Fprint(w, `{"execution_id":"x","state":"running"}`)
			return
		}
		fmt.Fprint(w, `{"success":true,"output":"done","error":"","execution_id":"x","metadata":{}}`)
	}))
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL})
	require.NoError(t, err)
	defer c.Close()
	result, err := c.Wait(t.Context(), "lease", "x")
	require.NoError(t, err)
	assert.Equal(t, "done", result.Output)
	assert.Equal(t, int32(3), asked.Load())
}
