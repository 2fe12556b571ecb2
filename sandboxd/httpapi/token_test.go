package httpapi

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestTheTokenOfMetricsOpensMetricsAlone asks every route there is, so that one
// that is added later is held to it as well.
func TestTheTokenOfMetricsOpensMetricsAlone(t *testing.T) {
	const bearer = "Authorization: Bearer looks-on"
	c := start(t, Config{Token: testToken, MetricsToken: "looks-on"})
	opened := 0
	for _, r := range c.server.routes() {
		want := http.StatusUnauthorized
		if r.open == everybody || r.path == "/metrics" {
			want = http.StatusOK
			opened++
		}
		assert.Equal(t, want, c.ask(t, r.method, concrete(r), "{}", bearer).code, "%s %s", r.method, r.path)
	}
	assert.Equal(t, 4, opened)
	assert.Empty(t, c.calls, "nothing was run")
	assert.Equal(t, 401, c.ask(t, http.MethodGet, "/nowhere", "", bearer).code, "it learns no routes")
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/metrics", "").code, "as does the one that opens all")
	for _, header := range []string{"", "Bearer ", "Bearer looks-o", "Bearer looks-on2", "Basic looks-on", "looks-on"} {
		assert.Equal(t, 401, c.ask(t, http.MethodGet, "/metrics", "", "Authorization: "+header).code, header)
	}
	assert.NotContains(t, c.logs.String(), "looks-on")
}

func TestTheTokenOfMetricsComesAndGoes(t *testing.T) {
	c := start(t, Config{Token: testToken})
	metrics := func(token string) int {
		return c.ask(t, http.MethodGet, "/metrics", "", "Authorization: Bearer "+token).code
	}
	assert.Equal(t, 401, metrics(""), "none is not any")
	c.server.RotateMetrics("one", time.Hour)
	assert.Equal(t, 200, metrics("one"))
	c.server.RotateMetrics("two", time.Hour)
	c.server.RotateMetrics("two", 0) // again: the grace goes on
	assert.Equal(t, 200, metrics("one"), "within the grace")
	assert.Equal(t, 200, metrics("two"))
	c.server.RotateMetrics("three", 0)
	assert.Equal(t, 401, metrics("two"), "without one")
	c.server.RotateMetrics("", time.Hour)
	assert.Equal(t, 401, metrics("three"), "one that is gone has none")
	assert.Equal(t, 401, metrics(""))
	assert.Equal(t, 200, metrics(testToken))
	assert.Equal(t, 401, c.ask(t, http.MethodGet, "/slots", "", "Authorization: Bearer three").code)
}
