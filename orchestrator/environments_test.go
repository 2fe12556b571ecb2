package orchestrator_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// putWheel puts a pure wheel into the directory: a module of the text, and a
// program of the package's name that calls its main.
func putWheel(t *testing.T, dir, name, version, text string, needs ...string) {
	t.Helper()
	info := name + "-" + version + ".dist-info/"
	meta := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	for _, n := range needs {
		meta += "Requires-Dist: " + n + "\n"
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	record := ""
	for _, f := range [][2]string{
		{name + ".py", text},
		{info + "METADATA", meta},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "entry_points.txt", "[console_scripts]\n" + name + " = " + name + ":main\n"},
	} {
		w, err := z.Create(f[0])
		require.NoError(t, err)
		_, err = w.Write([]byte(f[1]))
		require.NoError(t, err)
		record += f[0] + ",,\n"
	}
	w, err := z.Create(info + "RECORD")
	require.NoError(t, err)
	_, err = w.Write([]byte(record + info + "RECORD,,\n"))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+"-"+version+"-py3-none-any.whl"), b.Bytes(), 0o644))
}

// putModule puts an npm tarball into the directory.
func putModule(t *testing.T, dir, name, version, manifest, text string) {
	t.Helper()
	var b bytes.Buffer
	g := gzip.NewWriter(&b)
	w := tar.NewWriter(g)
	for file, text := range map[string]string{
		"package/package.json": fmt.Sprintf(`{"name":%q,"version":%q,"main":"index.js"%s}`, name, version, manifest), "package/index.js": text,
	} {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err := w.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, g.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+"-"+version+".tgz"), b.Bytes(), 0o644))
}

// packaged is an orchestrator whose one container builds environments from a
// directory alone, as an organization's variables say.
func packaged(t *testing.T) (*instance, client.Organization, string) {
	t.Helper()
	packages := sandboxtest.DataDir(t)
	require.NoError(t, os.Chmod(packages, 0o755))
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--sandboxd-arg", "--environments-packages", "--sandboxd-arg", packages)
	o := i.connect(i.url, operatorToken).Organization("acme")
	c, err := o.DefaultSandbox(t.Context(), poolapi.SandboxIsolated)
	require.NoError(t, err)
	for key, value := range map[string]string{"PIP_FIND_LINKS": packages, "PIP_NO_INDEX": "1"} {
		_, err := o.PutVariable(t.Context(), c.ID, poolapi.EnvironmentVariableRequest{Key: key, Value: value})
		require.NoError(t, err)
	}
	return i, o, packages
}

// again runs the tool often and holds what it costs to find its environment.
func again(t *testing.T, o client.Organization, run poolapi.ToolRun, want string) {
	t.Helper()
	var spent []float64
	for range 21 {
		got, err := o.RunTool(t.Context(), run)
		require.NoError(t, err)
		require.Equal(t, "success", got.Status, "%s", got.Text)
		assert.JSONEq(t, want, string(got.FuncReturn))
		assert.True(t, got.Sandbox.EnvCached)
		assert.True(t, got.Sandbox.Reused)
		spent = append(spent, got.Timings.Env)
	}
	slices.Sort(spent)
	t.Logf("environment of a further run: %.3f ms", spent[len(spent)/2])
	assert.LessOrEqual(t, spent[len(spent)/2], 1.0, "milliseconds")
}

func TestAToolRunsWithThePackagesItNames(t *testing.T) {
	need.Program(t, "pip")
	i, o, packages := packaged(t)
	for _, version := range []string{"1.0", "2.0"} {
		putWheel(t, packages, "berthdemo", version, "import below\nversion = '"+version+"'\ndef main(): print('program', version, below.value)\n", "below")
	}
	putWheel(t, packages, "below", "0.1", "value = 42\n")
	_, err := o.PutSandbox(t.Context(), poolapi.SandboxIsolated, json.RawMessage(`{"pip_requirements":[{"name":"Berthdemo","version":"1.0"}]}`))
	require.NoError(t, err)
	const source = `
import berthdemo, os, subprocess
def f():
    assert berthdemo.__file__.startswith(os.environ["VIRTUAL_ENV"]), berthdemo.__file__
    assert not os.access(berthdemo.__file__, os.W_OK)
    return [berthdemo.version, berthdemo.below.value, subprocess.run(["berthdemo"], capture_output=True, text=True).stdout]
`
	run := poolapi.ToolRun{Tool: poolapi.Tool{Name: "f", SourceType: "python", SourceCode: source}}
	var said []string
	listen := func(line string) { said = append(said, line) }
	got, err := o.FollowTool(t.Context(), run, listen)
	require.NoError(t, err)
	require.Equal(t, "success", got.Status, "%s", got.Text)
	assert.JSONEq(t, `["1.0",42,"program 1.0 42\n"]`, string(got.FuncReturn))
	assert.False(t, got.Sandbox.EnvCached)
	require.NotEmpty(t, said)
	assert.Contains(t, said[0], "making the environment with ")
	said = nil
	_, err = o.FollowTool(t.Context(), run, listen)
	require.NoError(t, err)
	assert.Empty(t, said, "nothing is built")
	again(t, o, run, `["1.0",42,"program 1.0 42\n"]`)

	run.Tool.PipRequirements = []api.Requirement{{Name: "berthdemo", Version: "2.0"}}
	got, err = o.RunTool(t.Context(), run)
	require.NoError(t, err)
	assert.JSONEq(t, `["2.0",42,"program 2.0 42\n"]`, string(got.FuncReturn), "%s", got.Text)
	assert.True(t, got.Sandbox.Reused, "what a tool requires needs no other slot")

	// It rides in /execute and /batch of a slot as well.
	spec := api.EnvironmentSpec{Language: api.LanguagePython, Requirements: run.Tool.PipRequirements, Index: api.Index{FindLinks: []string{packages}, NoIndex: true}}
	key, err := spec.Key()
	require.NoError(t, err)
	args, err := json.Marshal(api.FunctionArgs{Name: "f", SourceType: api.SourcePython, SourceCode: source, Environment: key})
	require.NoError(t, err)
	pool := i.connect(i.url, trainerToken)
	lease, err := pool.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: "t"})
	require.NoError(t, err)
	call := poolapi.Call{Tool: api.FunctionTool, Args: args}
	results, err := pool.Batch(t.Context(), lease.ID, []poolapi.Call{call, call})
	require.NoError(t, err)
	one, err := pool.Execute(t.Context(), lease.ID, call)
	require.NoError(t, err)
	for _, r := range append(results, one) {
		f, err := r.FunctionResult()
		require.NoError(t, err)
		require.NotNil(t, f)
		assert.JSONEq(t, `["2.0",42,"program 2.0 42\n"]`, string(f.FuncReturn), "%s", f.Text)
	}
	_, err = pool.Release(t.Context(), lease.ID)
	require.NoError(t, err)

	run.Tool.PipRequirements = []api.Requirement{{Name: "berthdemo", Version: "3.0"}}
	for range 3 { // more than there are slots
		got, err = o.RunTool(t.Context(), run)
		require.NoError(t, err)
		assert.Equal(t, api.FunctionInstall, got.Error.Kind)
		for _, part := range []string{"berthdemo==3.0", "tool f", "isolated sandbox", "package version incompatibility", "Consider updating the package version or removing the version constraint"} {
			assert.Contains(t, got.Text, part)
		}
	}
}

func TestAToolRunsWithTheModulesItNames(t *testing.T) {
	need.Program(t, "npm")
	_, o, packages := packaged(t)
	putModule(t, packages, "berth-demo", "1.2.0", `,"dependencies":{"berth-below":"^0.1.0"}`, `exports.twice = (n) => 2 * n * require("berth-below")`)
	putModule(t, packages, "berth-below", "0.1.3", "", `module.exports = 21`)
	run := poolapi.ToolRun{Tool: poolapi.Tool{
		Name: "f", SourceType: "typescript", JSONSchema: json.RawMessage(`{"properties":{"n":{"type":"integer"}}}`),
		SourceCode:      "import { twice } from 'berth-demo'\nexport const f = (n: number): number => twice(n)",
		NpmRequirements: []api.Requirement{{Name: "berth-demo", Version: "^1.0.0"}},
	}, Args: map[string]json.RawMessage{"n": json.RawMessage("1")}}
	got, err := o.RunTool(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, "success", got.Status, "%s", got.Text)
	assert.Equal(t, "42", string(got.FuncReturn))
	assert.False(t, got.Sandbox.EnvCached)
	again(t, o, run, "42")

	run.Tool.NpmRequirements = nil
	got, err = o.RunTool(t.Context(), run)
	require.NoError(t, err)
	assert.Equal(t, api.FunctionException, got.Error.Kind, "nobody else finds the module")
	run.Tool.NpmRequirements = []api.Requirement{{Name: "berth-demo", Version: "^9.0.0"}}
	got, err = o.RunTool(t.Context(), run)
	require.NoError(t, err)
	assert.Equal(t, api.FunctionInstall, got.Error.Kind)
	assert.Contains(t, got.Text, "berth-demo")
}
