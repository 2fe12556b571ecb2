package tooldemo

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

// player answers as a pool does on which everything works, and then spoils the
// answer of one run.
type player struct {
	secrets Secrets
	seen    []poolapi.ToolRun
	spoil   map[int]func(*poolapi.ToolResult) error
}

func (p *player) RunTool(_ context.Context, run poolapi.ToolRun) (poolapi.ToolResult, error) {
	n := len(p.seen)
	p.seen = append(p.seen, run)
	var r poolapi.ToolResult
	r.Status = api.FunctionSuccess
	again := n > 0 && p.seen[n-1].Tool.Name == run.Tool.Name
	r.Sandbox.EnvCached = again
	switch run.Tool.Name {
	case "order":
		r.FuncReturn = json.RawMessage(`{"total":"0.90","first":true,"signature":"` + p.secrets.signature("apple") + `"}`)
		r.AgentState = json.RawMessage(strings.Replace(string(run.Agent.State), `"}]`, `3 apple\n"}]`, 1))
		r.Stdout = []string{"ordered 3 apple\n"}
	case "notice":
		text := "2 pears on the way"
		if !again {
			text = "2 PEARS ON THE WAY!"
		}
		r.FuncReturn = json.RawMessage(`{"text":"` + text + `","first":true,"signature":"` + p.secrets.signature("pear") + `"}`)
		r.Stdout = []string{"noticed 2 pear\n"}
	case "refuse":
		r.Status, r.Text = api.FunctionFailed, "Error executing function refuse: ValueError: there is no plum"
		r.Error = &api.FunctionError{Kind: api.FunctionException}
	}
	if spoil := p.spoil[n]; spoil != nil {
		return r, spoil(&r)
	}
	return r, nil
}

var both = []string{"python", "typescript"}

func TestEveryRunThatIsAsPromisedPasses(t *testing.T) {
	p := &player{secrets: NewSecrets()}
	var said, table bytes.Buffer
	report := Run(t.Context(), p, p.secrets, both, &said)
	for _, row := range report.Rows {
		require.NoError(t, row.Err, row.What)
	}
	assert.Len(t, report.Rows, 5)
	assert.Equal(t, 5, strings.Count(said.String(), ": passed\n"))
	require.NoError(t, report.Write(&table))
	assert.Equal(t, 6, strings.Count(table.String(), "\n"))
	assert.Regexp(t, `(?m)^order +python +berth-demo-prices==1\.0 +0\.0 ms .* passed$`, table.String())
	assert.Len(t, Run(t.Context(), &player{secrets: p.secrets}, p.secrets, both[:1], nil).Rows, 3)
	assert.NotEqual(t, p.secrets, NewSecrets())
}

func TestARunThatIsNotAsPromisedFails(t *testing.T) {
	text := func(s string) json.RawMessage { return json.RawMessage(s) }
	for _, c := range []struct {
		name  string
		run   int
		spoil func(Secrets, *poolapi.ToolResult) error
		says  string
	}{
		{"no slot", 0, func(Secrets, *poolapi.ToolResult) error { return errors.New("no slot") }, "no slot"},
		{"another value", 0, func(_ Secrets, r *poolapi.ToolResult) error { r.FuncReturn = text(`{"total":1}`); return nil }, "instead of"},
		{"no value", 0, func(_ Secrets, r *poolapi.ToolResult) error { r.FuncReturn = text(`null`); return nil }, "instead of"},
		{"no JSON", 0, func(_ Secrets, r *poolapi.ToolResult) error { r.FuncReturn = nil; return nil }, "no object"},
		{"no state", 0, func(_ Secrets, r *poolapi.ToolResult) error { r.AgentState = nil; return nil }, "state does not come back"},
		{"an old state", 0, func(_ Secrets, r *poolapi.ToolResult) error { r.AgentState = text(`{}`); return nil }, "does not remember"},
		{"no output", 0, func(_ Secrets, r *poolapi.ToolResult) error { r.Stdout = nil; return nil }, "it printed"},
		{"the environment built twice", 1, func(_ Secrets, r *poolapi.ToolResult) error { r.Sandbox.EnvCached = false; return nil }, "environment was there"},
		{"something carried over", 1, func(s Secrets, r *poolapi.ToolResult) error {
			r.FuncReturn = text(`{"total":"0.90","first":false,"signature":"` + s.signature("apple") + `"}`)
			return nil
		}, "first:false"},
		{"a failure that is none", 2, func(_ Secrets, r *poolapi.ToolResult) error { r.Error = nil; return nil }, "instead of"},
		{"a script that fails", 3, func(_ Secrets, r *poolapi.ToolResult) error {
			r.Error, r.Text = &api.FunctionError{}, "node could not be started"
			return nil
		}, "node could not be started"},
		{"another secret", 4, func(_ Secrets, r *poolapi.ToolResult) error {
			r.FuncReturn = text(`{"text":"2 pears on the way","first":true,"signature":"` + NewSecrets().signature("pear") + `"}`)
			return nil
		}, "instead of"},
		{"a secret in the answer", 4, func(s Secrets, r *poolapi.ToolResult) error {
			r.Stderr = []string{"debug: " + s.Key}
			return nil
		}, "shows a secret"},
	} {
		secrets := NewSecrets()
		p := &player{secrets: secrets, spoil: map[int]func(*poolapi.ToolResult) error{
			c.run: func(r *poolapi.ToolResult) error { return c.spoil(secrets, r) },
		}}
		var said, table bytes.Buffer
		report := Run(t.Context(), p, secrets, both, &said)
		assert.Equal(t, 1, report.Failures(), c.name)
		require.ErrorContains(t, report.Rows[c.run].Err, c.says, c.name)
		assert.Contains(t, said.String(), "FAILED: ", c.name)
		require.NoError(t, report.Write(&table))
		assert.Equal(t, 1, strings.Count(table.String(), "FAILED"), c.name)
		assert.False(t, secrets.In(said.Bytes()) || secrets.In(table.Bytes()), c.name)
	}
}

func TestADemoThatIsInterruptedRunsNothingMore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	secrets := NewSecrets()
	p := &player{secrets: secrets, spoil: map[int]func(*poolapi.ToolResult) error{0: func(*poolapi.ToolResult) error {
		cancel()
		return context.Canceled
	}}}
	assert.Len(t, Run(ctx, p, secrets, both, nil).Rows, 1)
}

func TestThePackagesAreWhole(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, WritePackages(dir))
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	require.NoError(t, err)
	assert.Len(t, wheels, 2)
	for _, name := range wheels {
		w, err := zip.OpenReader(name)
		require.NoError(t, err)
		module, _, _ := strings.Cut(filepath.Base(name), "-")
		names := ""
		for _, f := range w.File {
			names += f.Name + " "
		}
		assert.Equal(t, fmt.Sprintf("%[1]s.py %[1]s-1.0.dist-info/METADATA %[1]s-1.0.dist-info/WHEEL %[1]s-1.0.dist-info/RECORD ", module), names)
		require.NoError(t, w.Close())
	}
	f, err := os.Open(filepath.Join(dir, "berth-demo-words-1.0.0.tgz"))
	require.NoError(t, err)
	defer f.Close()
	g, err := gzip.NewReader(f)
	require.NoError(t, err)
	archive := tar.NewReader(g)
	head, err := archive.Next()
	require.NoError(t, err)
	text, err := io.ReadAll(archive)
	require.NoError(t, err)
	assert.Equal(t, "package/package.json", head.Name)
	assert.True(t, json.Valid(text))
	require.Error(t, WritePackages(filepath.Join(dir, "none")))
}
