package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

func TestToolRunReadsWhatItIsToRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	python, schema := write("add.py", "def add(a): ..."), write("schema.json", `{"properties":{}}`)
	a := &app{in: strings.NewReader(`{"a": 12345678901234567890}`)}
	run, err := (&toolRun{args: "@-", schema: schema, sandbox: "auto", env: []string{"A=b=c"}, pip: []string{"x==1"}, timeout: 1e9, fresh: true}).request(a, python)
	require.NoError(t, err)
	assert.Equal(t, "add", run.Tool.Name)
	assert.Equal(t, "python", run.Tool.SourceType)
	assert.Equal(t, "12345678901234567890", string(run.Args["a"]))
	assert.Equal(t, "b=c", *run.Env["A"])
	assert.Equal(t, []api.Requirement{{Name: "x", Version: "==1"}}, run.Tool.PipRequirements)
	assert.False(t, *run.Sandbox.Reuse)
	assert.JSONEq(t, `{"properties":{}}`, string(run.Tool.JSONSchema))
	for _, c := range []struct {
		t    toolRun
		file string
	}{
		{toolRun{args: "{}"}, python},
		{toolRun{args: "[1]", timeout: 1}, python},
		{toolRun{args: "{}", timeout: 1, env: []string{"A"}}, python},
		{toolRun{args: "{}", timeout: 1, schema: python}, python},
		{toolRun{args: "{}", timeout: 1}, write("add.rb", "")},
	} {
		_, err := c.t.request(a, c.file)
		f := &failure{}
		require.ErrorAs(t, err, &f, "%+v", c)
		assert.Equal(t, exitUsage, f.status)
	}
	_, err = (&toolRun{args: "{}", timeout: 1}).request(a, filepath.Join(dir, "none.py"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestToolRunTellsHowTheBuildOfItsEnvironmentGoes(t *testing.T) {
	var asked *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		w.Header().Set("Content-Type", api.TypeNDJSON)
		_, _ = io.WriteString(w, `{"event":"progress","text":"making the environment\u001b[2J"}`+"\n"+`{"event":"ping"}`+"\n"+
			`{"event":"result","result":{"status":"success","func_return":42,"stdout":[],"stderr":[]}}`+"\n")
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "f.py")
	require.NoError(t, os.WriteFile(file, []byte("def f(): ..."), 0o600))
	status, stdout, stderr := runMain(t.Context(), "tool", "run", file, "--url", server.URL, "--json=false")
	assert.Zero(t, status)
	assert.Equal(t, "42\n", stdout)
	assert.Equal(t, "making the environment?[2J\n", stderr)
	assert.Equal(t, api.TypeNDJSON, asked.Header.Get("Accept"))
	assert.Equal(t, "default", asked.Header.Get(poolapi.HeaderOrganization))
}

func TestToolRunPrintsWhatCameOfIt(t *testing.T) {
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs}
	result := poolapi.ToolResult{FunctionResult: api.FunctionResult{
		Status: "success", FuncReturn: []byte(`{"a":1}`), Text: "{'a': 1}", Stdout: []string{"hello"}, Stderr: []string{"warning\n"},
	}}
	require.NoError(t, a.printTool(a.toolCommand(), result))
	assert.Equal(t, "{\"a\":1}\n", out.String(), "what it returns is JSON, and apart from what it writes")
	assert.Equal(t, "hello\nwarning\n", errs.String())
	out.Reset()
	result.FuncReturn, result.Text = []byte(`"a\nb"`), "a\nb"
	require.NoError(t, a.printTool(a.toolCommand(), result))
	assert.Equal(t, "a\nb\n", out.String())
	result.Status, result.Text = "error", "Error executing function f: ValueError: x"
	err := a.printTool(a.toolCommand(), result)
	f := &failure{}
	require.ErrorAs(t, err, &f)
	assert.Equal(t, exitFailed, f.status)
	assert.ErrorContains(t, err, "ValueError: x")
}
