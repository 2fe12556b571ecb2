package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"berth/sandboxd/api"
)

func FuzzCall(f *testing.F) {
	for _, body := range bodies() {
		if len(body) < 10_000 {
			f.Add([]byte(body))
		}
	}
	f.Add([]byte(benchCall))
	f.Fuzz(func(t *testing.T, text []byte) {
		call, err := decodeCall(text)
		if err != nil {
			if strings.Contains(err.Error(), "json:") || strings.Contains(err.Error(), "Go ") {
				t.Fatalf("error shows our insides: %v", err)
			}
			return
		}
		if !json.Valid(text) {
			t.Fatalf("accepted what is no JSON: %q", text)
		}
		if _, err := json.Marshal(call); err != nil {
			t.Fatalf("accepted what cannot be sent on: %v", err)
		}
	})
}

func FuzzStrictBody(f *testing.F) {
	f.Add([]byte(`{"trajectory":"t","ttl_s":1,"labels":{"a":"b"},"expected_token":1}`))
	f.Add([]byte(`{"a":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var want api.LeaseRequest
		if api.DecodeStrict(text, &want) == nil && !json.Valid(text) {
			t.Fatalf("accepted what is no JSON: %q", text)
		}
	})
}

func FuzzRoutes(f *testing.F) {
	k := newFakeKeeper(f)
	server := New(k.deps(&lockedBuffer{}), Config{MaxBody: 1 << 20})
	for i := range server.routes() {
		f.Add(i, []byte(`{"slot_id":"slot_0","tool":"bash","path":"x"}`), "bytes=0-1", "a%2fb")
	}
	f.Fuzz(func(t *testing.T, n int, body []byte, header, segment string) {
		routes := server.routes()
		r := routes[uint(n)%uint(len(routes))]
		path := strings.NewReplacer(":slot", "slot_0", ":id", segment, "*", segment).Replace(r.path)
		req, err := http.NewRequestWithContext(t.Context(), r.method, "http://x"+path, strings.NewReader(string(body)))
		if err != nil {
			t.Skip("no URL")
		}
		for _, name := range []string{"Range", "If-Match", "Last-Event-ID", "Digest", "Accept", api.HeaderToken} {
			req.Header.Set(name, header)
		}
		w := httptest.NewRecorder()
		server.ServeHTTP(w, req)
		if w.Code >= 500 {
			t.Fatalf("%s %s: %d %s", r.method, path, w.Code, w.Body)
		}
	})
}

func FuzzRange(f *testing.F) {
	for _, text := range []string{"0-1", "-5", "7-", "9-3", "-", "99999999999999999999-", "0-99999999999999999999", "--1"} {
		f.Add(text, int64(10))
	}
	f.Fuzz(func(t *testing.T, text string, size int64) {
		if size < 0 {
			size = -(size + 1)
		}
		size %= 1 << 60
		part, ok := parseRange(text, size)
		if !ok || part.length <= 0 {
			return
		}
		assert.GreaterOrEqual(t, part.start, int64(0))
		assert.LessOrEqual(t, part.start+part.length, size)
	})
}
