package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheDescriptionHasEveryRouteAndNoOther(t *testing.T) {
	s, _ := newServer(t, Config{})
	text, err := s.description()
	require.NoError(t, err)
	var doc struct {
		Paths map[string]map[string]struct {
			Summary    string
			Parameters []struct{ Name, In string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &doc))
	described := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, operation := range methods {
			described[strings.ToUpper(method)+" "+path] = true
			assert.NotEmpty(t, operation.Summary)
			named := 0
			for _, p := range operation.Parameters {
				if p.In == "path" {
					named++
					assert.Contains(t, path, "{"+p.Name+"}")
				}
			}
			assert.Equal(t, strings.Count(path, "{"), named, path)
		}
	}
	served := map[string]bool{}
	for _, r := range s.echo.Routes() {
		served[r.Method+" "+openPath(r.Path)] = true
	}
	assert.Equal(t, served, described)
}

func TestARouteOfATypeThatHasNoSchemaIsAnError(t *testing.T) {
	_, err := describe([]route{{method: http.MethodGet, path: "/x", about: about{answer: is[chan int]()}}})
	require.ErrorContains(t, err, "/x")
}

func TestWhatQueriesAreCalledIsKnown(t *testing.T) {
	s, _ := newServer(t, Config{})
	for _, r := range s.routes() {
		for _, name := range r.about.query {
			assert.Contains(t, queries, name, r.path)
		}
	}
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.json", nil))
	assert.Equal(t, 200, answer.Code)
}
