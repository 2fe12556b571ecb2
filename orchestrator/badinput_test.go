package orchestrator_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

// TestNoRouteTakesBadInputForGood sends every route that reads JSON what it
// does not read, and every route a wrong token and a lease that is not there:
// each refusal is typed, none is an internal error, and nothing is lost.
func TestNoRouteTakesBadInputForGood(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--max-body", "64KiB")
	lease := i.acquire(object{"trajectory": "a"})
	i.run("t", "echo here > f")
	require.Equal(t, 201, i.do("PUT", path(lease, "/files/f"), "here").status)
	fill := strings.NewReplacer("{lease}", lease["lease"].(string), "{id}", lease["container"].(string), "{execution}", "none", "{path}", "none")
	asOperator := "Authorization: Bearer " + operatorToken
	bodies := map[string]string{
		"none": "", "half": "{", "array": "[]", "number": "7", "text": `"x"`, "two": "{} {}", "no UTF-8": "{\"\xff\"",
		"deep": `{"x":` + strings.Repeat("[", 30_000), "huge": `{"x":"` + strings.Repeat("x", 70_000) + `"}`,
		"unknown": `{"no such field":1}`, "types": `{"trajectory_id":[],"trajectory":7,"tool":[],"args":7,"calls":7,"path":[],"ttl_s":"x","on":7,"within_s":"x","reset":7}`,
	}
	// refused says what kind of refusal the answer is, in whichever style.
	refused := func(r reply) string {
		var a struct {
			Error    json.RawMessage
			Kind     string `json:"error_kind"`
			Metadata struct {
				Kind string `json:"error_kind"`
			}
		}
		require.NoError(t, json.Unmarshal(r.body, &a), "%s", r.body)
		var fault struct{ Kind string }
		_ = json.Unmarshal(a.Error, &fault) // a text in the other styles
		return fault.Kind + a.Kind + a.Metadata.Kind
	}
	for template, methods := range i.contract.paths {
		for method, described := range methods {
			method, to := strings.ToUpper(method), fill.Replace(template)
			operation := described.(object)
			where := method + " " + to
			if operation["security"] != nil {
				for header, status := range map[string]int{"Authorization: ": 401, "Authorization: Bearer wrong": 403, "Authorization: Basic x": 401} {
					r := i.do(method, to, nil, header)
					assert.Equal(t, status, r.status, "%s: %s", where, r.body)
					if method != "HEAD" {
						assert.Equal(t, "unauthorized", refused(r), where)
					}
				}
			}
			if strings.Contains(template, "{lease}") {
				for name, status := range map[string]int{"none:slot_0:1": 503, "x": 400, "a:b:0": 400} {
					r := i.do(method, strings.Replace(to, lease["lease"].(string), name, 1), nil)
					assert.Equal(t, status, r.status, "%s with %s: %s", where, name, r.body)
				}
			}
			asks, _ := operation["requestBody"].(object)
			if asks == nil || asks["content"].(object)["application/json"] == nil {
				continue
			}
			optional := asks["required"] != true
			for name, body := range bodies {
				if name == "none" && optional {
					continue
				}
				r := i.do(method, to, body, asOperator)
				about := fmt.Sprintf("%s with %s: %d %.200s", where, name, r.status, r.body)
				want, kind := 400, "bad_request"
				if name == "huge" {
					want, kind = 413, "too_large"
				}
				assert.Equal(t, want, r.status, about)
				assert.Equal(t, kind, refused(r), about)
			}
		}
	}
	assert.Equal(t, "here", i.run("t", "cat f"))
	assert.Equal(t, "here", string(i.get(path(lease, "/files/f")).body), "nothing was lost")
	assert.Len(t, i.get("/v1/leases").object()["leases"], 2)
	assert.Equal(t, "ready", i.get("/v1/containers").object()["containers"].([]any)[0].(object)["state"])
	assert.NotContains(t, i.log.String(), "panicked")
	assert.NotContains(t, i.log.String(), "request failed")
}

// A client that sends all of its file before it looks for an answer gets the
// one that was there long before, from us as from the container.
func TestARefusedUploadIsHeardByWhoSendsFirst(t *testing.T) {
	const more = 16 << 20 // than the kernel keeps for a connection
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	lease := i.acquire(object{"trajectory": "a"})
	for target, want := range map[string]int{
		path(lease, "/files/none?untar=1"):    http.StatusBadRequest,
		"/v1/leases/none:slot_0:1/files/none": http.StatusServiceUnavailable,
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(i.url, "http://"))
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", target, trainerToken, more, strings.Repeat("x", more))
		require.NoError(t, err, target)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, target)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err, target)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, want, answer.StatusCode, "%s: %s", target, text)
	}
	assert.Equal(t, "here", i.run("a", "echo here"), "the lease goes on")
}
