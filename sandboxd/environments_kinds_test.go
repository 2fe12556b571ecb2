package sandboxd_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox"
	"berth/slots/sandbox/sandboxtest"
)

// onePackage is a directory with a wheel, and what requires it.
func onePackage(t *testing.T) (dir string, spec api.EnvironmentSpec) {
	t.Helper()
	need.Program(t, "pip")
	dir = sandboxtest.DataDir(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	const info = "berthdemo-1.0.dist-info/"
	for _, f := range [][2]string{
		{"berthdemo.py", "value = 42\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: berthdemo\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "berthdemo.py,,\n"},
	} {
		w, err := z.Create(f[0])
		require.NoError(t, err)
		_, err = w.Write([]byte(f[1]))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "berthdemo-1.0-py3-none-any.whl"), b.Bytes(), 0o644))
	return dir, api.EnvironmentSpec{
		Language: api.LanguagePython, Requirements: []api.Requirement{{Name: "berthdemo"}}, Index: api.Index{FindLinks: []string{dir}, NoIndex: true},
	}
}

// builtAndUsed has the agent build an environment, and functions of its slots
// use it and try to change it: root inside, too.
func builtAndUsed(t *testing.T, o agenttest.Options) {
	dir, spec := onePackage(t)
	o.Slots, o.Args = 2, append(o.Args, "--environments-packages", dir)
	a := agenttest.Start(t, o)
	for _, cached := range []bool{false, true} {
		r, err := a.EnsureEnvironment(t.Context(), spec, client.EnsureOptions{})
		require.NoError(t, err)
		require.Nil(t, r.Failure, "%+v", r.Failure)
		assert.Equal(t, cached, r.Cached)
	}
	key, err := spec.Key()
	require.NoError(t, err)
	const source = `
import berthdemo, os, sys
def f():
    tried = []
    try:
        os.chmod(berthdemo.__file__, 0o666)
        os.chmod(sys.prefix, 0o777)
    except OSError:
        pass  # slots of one uid may: it gets them no further
    for do in (lambda: open(berthdemo.__file__, "w"), lambda: os.remove(berthdemo.__file__),
               lambda: os.mkdir(os.path.join(sys.prefix, "more")), lambda: os.rename(sys.prefix, sys.prefix + "x")):
        try:
            do()
            tried.append("done")
        except OSError:
            tried.append("refused")
    return [berthdemo.value, tried, os.environ["VIRTUAL_ENV"] == sys.prefix]
`
	const want = `[42,["refused","refused","refused","refused"],true]`
	run := func(slot string) {
		t.Helper()
		text, err := json.Marshal(api.FunctionArgs{Name: "f", SourceType: api.SourcePython, SourceCode: source, Environment: key})
		require.NoError(t, err)
		r, err := a.Execute(t.Context(), api.Call{SlotID: slot, Tool: api.FunctionTool, Args: text, Timeout: api.Seconds(60)})
		require.NoError(t, err)
		f, err := r.FunctionResult()
		require.NoError(t, err)
		require.NotNil(t, f)
		require.Nil(t, f.Error, "%+v", f.Error)
		assert.JSONEq(t, want, string(f.FuncReturn))
	}
	run("slot_0")
	run("slot_1")
	run("slot_0")
	_, err = a.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	run("slot_0")
}

func TestAnEnvironmentIsBuiltForSlotsWithAPrivateRoot(t *testing.T) {
	t.Parallel()
	h, err := sandbox.Open(t.Context(), sandbox.Config{
		DataDir: sandboxtest.DataDir(t), Exe: sandboxtest.Agent(t), Network: true, Attempt: slots.LevelNS, PrivateRoot: true,
	})
	need.Facility(t, "overlay", err)
	require.NoError(t, h.Close())
	builtAndUsed(t, agenttest.Options{Level: slots.LevelNS, Args: []string{"--root", "private"}})
}

func TestAnEnvironmentIsBuiltByAnOrdinaryUsersAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it is one that runs the other tests")
	}
	for _, level := range []slots.Level{slots.LevelLandlock, slots.LevelNS} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			builtAndUsed(t, agenttest.Options{Level: level, UID: 65534})
		})
	}
}
