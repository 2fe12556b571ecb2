package rollout_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/rollout"
	"berth/cmd/berth/rollout/rollouttest"
)

// request is what a scripted container was sent.
type request struct {
	line          string // method and path
	body          string
	authorization string
	contentType   string
}

// scripted answers every request with the same status and JSON, and keeps
// what it was sent.
func scripted(t *testing.T, status int, answer string) (rollout.Client, *request) {
	t.Helper()
	seen := &request{}
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		*seen = request{r.Method + " " + r.URL.Path, string(body), r.Header.Get("Authorization"), r.Header.Get("Content-Type")}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	return client, seen
}

// call is one with an execution_id that a test can write down.
var call = rollout.Call{
	SlotID: "slot_3", Tool: "bash", Args: map[string]any{"command": "true"}, ExecutionID: "e1", Timeout: 30,
}

const callText = `{"slot_id":"slot_3","tool":"bash","args":{"command":"true"},"execution_id":"e1","timeout":30}`

func TestExecuteSendsTheReferencesFields(t *testing.T) {
	client, seen := scripted(t, http.StatusOK, `{"success":true,"output":"","error":"","execution_id":"e1","metadata":{"exit_code":0}}`)
	a, took, err := client.Execute(t.Context(), call)
	require.NoError(t, err)
	assert.Equal(t, "POST /execute", seen.line)
	assert.JSONEq(t, callText, seen.body)
	assert.Equal(t, "application/json", seen.contentType)
	assert.Empty(t, seen.authorization, "a client without a token sends none")
	assert.True(t, a.Success)
	assert.InDelta(t, 0, a.Metadata["exit_code"], 0)
	assert.Positive(t, took)
}

func TestExecuteReadsTheAnswerWhateverItsStatus(t *testing.T) {
	client, _ := scripted(t, http.StatusServiceUnavailable, `{"success":false,"error":"slot lost","execution_id":"e1"}`)
	a, _, err := client.Execute(t.Context(), call)
	require.NoError(t, err)
	assert.Equal(t, rollout.Answer{Error: "slot lost", ExecutionID: "e1"}, a)
}

func TestExecuteRefusesTheAnswerToAnotherCall(t *testing.T) {
	for _, id := range []string{"", "e2"} {
		client, _ := scripted(t, http.StatusOK, `{"success":true,"execution_id":"`+id+`"}`)
		_, _, err := client.Execute(t.Context(), call)
		require.ErrorContains(t, err, `answer to "e1" carries execution_id "`+id+`"`)
	}
}

func TestBatchSendsAnArrayAndWantsAnAnswerToEachInOrder(t *testing.T) {
	second := call
	second.ExecutionID = "e2"
	calls := []rollout.Call{call, second}
	for answer, wrong := range map[string]string{
		`[{"success":true,"execution_id":"e1"},{"success":false,"execution_id":"e2"}]`: "",
		`[{"success":true,"execution_id":"e2"},{"success":false,"execution_id":"e1"}]`: "answer 0 carries",
		`[{"success":true,"execution_id":"e1"}]`:                                       "1 answers to 2 calls",
		`[]`:                                                                           "0 answers to 2 calls",
		`{"success":true}`:                                                             "decode answer",
	} {
		client, seen := scripted(t, http.StatusOK, answer)
		answers, err := client.Batch(t.Context(), calls)
		assert.Equal(t, "POST /batch", seen.line)
		assert.JSONEq(t, "["+callText+","+strings.Replace(callText, "e1", "e2", 1)+"]", seen.body)
		if wrong != "" {
			require.ErrorContains(t, err, wrong, answer)
			continue
		}
		require.NoError(t, err, answer)
		assert.Equal(t, []bool{true, false}, []bool{answers[0].Success, answers[1].Success})
	}
}

func TestResetWantsTheReferencesSentence(t *testing.T) {
	for answer, wrong := range map[string]string{
		`{"success":true,"output":"Reset workspace for slot_3"}`: "",
		`{"success":true,"output":"Reset slot_3"}`:               `got "Reset slot_3"`,
		`{"success":false,"error":"Unknown slot: slot_3"}`:       "Unknown slot: slot_3",
	} {
		client, seen := scripted(t, http.StatusOK, answer)
		err := client.Reset(t.Context(), "slot_3")
		assert.Equal(t, "POST /reset", seen.line)
		assert.JSONEq(t, `{"slot_id":"slot_3"}`, seen.body)
		if wrong == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, wrong)
		}
	}
}

func TestReadArtifactAsksForTextWithItsChecksum(t *testing.T) {
	client, seen := scripted(t, http.StatusNotFound, `{"success":false,"error":"Not found: mend.diff"}`)
	a, err := client.ReadArtifact(t.Context(), "slot_3", "mend.diff")
	require.NoError(t, err)
	assert.Equal(t, rollout.Artifact{Error: "Not found: mend.diff"}, a)
	assert.Equal(t, "POST /artifacts/read", seen.line)
	assert.JSONEq(t, `{"slot_id":"slot_3","path":"mend.diff","encoding":"text","include_sha256":true}`, seen.body)
}

func TestHealthIsOnlyWhatSaysOK(t *testing.T) {
	client, seen := scripted(t, http.StatusOK, `{"status":"ok","slots":8,"isolation":{"level":"ns","axes":{}}}`)
	health, err := client.Health(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "GET /health", seen.line)
	assert.Equal(t, "ns", health.Isolation.Level)
	client, _ = scripted(t, http.StatusOK, `{"status":"draining"}`)
	_, err = client.Health(t.Context())
	require.ErrorContains(t, err, `status "draining"`)
}

func TestSlotsAreListedInTheContainersOrder(t *testing.T) {
	client, seen := scripted(t, http.StatusOK, `{"slots":[{"slot_id":"slot_1"},{"slot_id":"slot_0","state":"available"}]}`)
	client.Token = "secret"
	ids, err := client.Slots(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"slot_1", "slot_0"}, ids)
	assert.Equal(t, "GET /slots", seen.line)
	assert.Equal(t, "Bearer secret", seen.authorization)
}

func TestAnUnreachableContainerIsAnError(t *testing.T) {
	client := rollout.Client{URL: "http://127.0.0.1:1", HTTP: &http.Client{Timeout: 5 * time.Second}}
	_, err := client.Slots(t.Context())
	require.ErrorContains(t, err, "call container")
}

func TestEveryCallHasAnExecutionIDOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		seen[rollout.NewCall("slot_0", "bash", nil).ExecutionID] = true
	}
	assert.Len(t, seen, 100)
}

func TestRolloutChecksTheArtifactItFetched(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*rollout.Artifact)
		want   string
	}{
		"missing":        {func(a *rollout.Artifact) { *a = rollout.Artifact{Error: "Not found: mend.diff"} }, "Not found: mend.diff"},
		"truncated":      {func(a *rollout.Artifact) { a.Truncated = true }, "truncated true"},
		"wrong size":     {func(a *rollout.Artifact) { a.Bytes++ }, "truncated false"},
		"wrong checksum": {func(a *rollout.Artifact) { a.SHA256 = strings.Repeat("0", 64) }, "is not that of the content"},
		"no diff": {func(a *rollout.Artifact) {
			*a = rollout.Artifact{Success: true, SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
		}, "not a diff"},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, spoiledArtifacts(t, c.change))
			report, err := rollout.Run(t.Context(), client, rollout.Config{Trajectories: 1})
			require.NoError(t, err)
			require.Equal(t, 1, report.Failures())
			require.ErrorContains(t, report.Results[0].Err, "fetch the diff: ")
			assert.ErrorContains(t, report.Results[0].Err, c.want)
		})
	}
}

// spoiledArtifacts is a container whose artifacts are changed on their way.
func spoiledArtifacts(t *testing.T, change func(*rollout.Artifact)) http.Handler {
	t.Helper()
	container := rollouttest.Container{Dir: t.TempDir(), Slots: 1}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/artifacts/read" {
			container.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		container.ServeHTTP(answer, r)
		var a rollout.Artifact
		assert.NoError(t, json.Unmarshal(answer.Body.Bytes(), &a))
		change(&a)
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(a))
	})
}
