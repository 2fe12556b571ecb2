package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
)

func TestTopSaysWhyContainersDoNotStart(t *testing.T) {
	now, span := time.Now(), regexp.MustCompile(`\b\d+m\d+s\b`)
	v := view{Pools: []poolapi.Pool{
		{Template: "fine", Slots: 2},
		{Template: "broken", Trouble: &poolapi.Trouble{
			FailedStarts: 4, Failed: now.Add(-30 * time.Minute), Next: now.Add(40 * time.Minute), Words: "Dimension \"memory\"\x1b[2J exhausted on 3 nodes",
		}},
		{Template: "elsewhere", Trouble: &poolapi.Trouble{Words: "no route to host"}},
	}}
	for _, c := range []struct {
		name  string
		width int
		want  []string
	}{
		{"in full", 0, []string{
			`broken: the last container did not start T ago, 4 in a row, next try in T: Dimension "memory"?[2J exhausted on 3 nodes`,
			`elsewhere: no container starts: no route to host`,
		}},
		{"as wide as the screen", 40, []string{`broken: the last container did not start`, `elsewhere: no container starts: no route`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			require.NoError(t, v.write(&out, c.width))
			var said []string
			for text := range strings.Lines(out.String()) {
				if strings.Contains(text, "start") {
					said = append(said, span.ReplaceAllString(strings.TrimSuffix(text, "\n"), "T"))
				}
			}
			assert.Equal(t, c.want, said)
		})
	}
}

func TestDoctorAndTopTellWhatAServerSaysOfItsPools(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := `{"status":"ok"}`
		switch r.URL.Path {
		case "/v1/pools":
			answer = `{"pools":[{"template":"large","slots":0,"trouble":{"failed_starts":0,"words":"Dimension \"memory\" exhausted on 1 nodes"}}]}`
		case "/v1/containers":
			answer = `{"containers":[]}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	b := newBerth(t)
	const said = `large: no container starts: Dimension "memory" exhausted on 1 nodes`
	doctor := b.run("--url", server.URL, "doctor", "--json=false")
	assert.Equal(t, 1, doctor.status, "no slot is there")
	assert.Regexp(t, `(?m)^warn +pool +`+said+`$`, doctor.stdout)
	top := b.run("--url", server.URL, "top", "--json=false")
	require.Zero(t, top.status, top.stderr)
	assert.Regexp(t, `(?m)^`+said+`$`, top.stdout)
}
