package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// builds are Tools whose runs say these lines and end so.
type builds struct {
	echoes
	says  []string
	fault error
}

func (b *builds) Run(_ context.Context, organization string, _ *poolapi.ToolRun, progress func(string)) (poolapi.ToolResult, error) {
	b.runs++
	for _, line := range b.says {
		if progress != nil {
			progress(line)
		}
	}
	return poolapi.ToolResult{ExecutionID: organization}, b.fault
}

func TestAStreamedRunTellsWhatItsBuildSays(t *testing.T) {
	made, _ := configured(t)
	deps, tools := made.Deps, &builds{says: []string{"one", "two\u2028"}}
	deps.Metrics, deps.Tools = NewMetrics(), tools
	s := New(deps, Config{Template: "t"})
	ask := func(accept, key string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/tools/run", strings.NewReader(`{"tool":{"name":"f","source_code":"x","source_type":"python"}}`))
		r.Header.Set("Accept", accept)
		if key != "" {
			r.Header.Set(poolapi.HeaderKey, key)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	w := ask("application/json", "")
	assert.Equal(t, 200, w.Code)
	assert.NotContains(t, w.Body.String(), "one")

	for range 2 { // the second one is told the same
		w = ask(api.TypeNDJSON, "a")
		assert.Equal(t, 200, w.Code)
		assert.Equal(t, api.TypeNDJSON, w.Header().Get("Content-Type"))
		lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
		require.Len(t, lines, 3, "%s", w.Body)
		assert.JSONEq(t, `{"event":"progress","text":"one"}`, lines[0])
		assert.JSONEq(t, `{"event":"progress","text":"two\u2028"}`, lines[1])
		assert.Contains(t, lines[2], `{"event":"result","result":{`)
		assert.Contains(t, lines[2], `"execution_id":"default"`)
	}
	assert.Equal(t, 2, tools.runs, "a key is one run")
	w = ask(api.TypeEventStream, "")
	assert.True(t, strings.HasPrefix(w.Body.String(), "event: progress\ndata: {\"event\":\"progress\",\"text\":\"one\"}\n\n"), "%s", w.Body)

	tools.fault = slots.Errorf(slots.KindSlotLost, "it is gone")
	w = ask(api.TypeNDJSON, "")
	assert.Equal(t, 200, w.Code, "it has begun")
	assert.Contains(t, w.Body.String(), `{"event":"result","error":{"kind":"slot_lost","message":"it is gone"`)
	tools.fault = slots.Errorf(slots.KindPoolExhausted, "none is free")
	before := tools.runs
	for range 2 {
		assert.Contains(t, ask(api.TypeNDJSON, "b").Body.String(), "none is free")
	}
	assert.Equal(t, before+2, tools.runs, "what came to nothing is tried again")
	tools.says = nil
	w = ask(api.TypeNDJSON, "")
	assert.Equal(t, 429, w.Code, "nothing was said before it was refused")
}
