package sandboxd_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// runAt runs a function below the home of the container.
func runAt(t *testing.T, a *agenttest.Agent, slot, directory, sourceType, source string) string {
	t.Helper()
	text, err := json.Marshal(api.FunctionArgs{Name: "f", SourceType: sourceType, SourceCode: source, JSONSchema: json.RawMessage(`{}`), Directory: directory})
	require.NoError(t, err)
	r, err := a.Execute(t.Context(), api.Call{SlotID: slot, Tool: api.FunctionTool, Args: text, Timeout: api.Seconds(60)})
	require.NoError(t, err)
	f, err := r.FunctionResult()
	require.NoError(t, err)
	require.NotNil(t, f)
	require.Nil(t, f.Error, "%+v", f.Error)
	return string(f.FuncReturn)
}

// functionsAtHome is what must hold of functions in a container with a home.
func functionsAtHome(t *testing.T, o agenttest.Options) {
	homes := sandboxtest.DataDir(t)
	if o.UID != 0 {
		require.NoError(t, os.Chown(homes, o.UID, o.UID))
	}
	home := filepath.Join(homes, "acme")
	o.Slots, o.Args = 2, []string{"--home", home}
	a := agenttest.Start(t, o)
	const add = `
import os
def f():
    with open("kept", "a") as f:
        f.write("x")
    os.chmod("kept", 0o600)
    return [open("kept").read(), os.stat("kept").st_uid == os.getuid(), os.getcwd() == os.environ["PWD"]]
`
	if o.Level == slots.LevelUID || o.Level == slots.LevelUIDLandlock {
		text, err := json.Marshal(api.FunctionArgs{Name: "f", SourceType: api.SourcePython, SourceCode: add, Directory: "x"})
		require.NoError(t, err)
		_, err = a.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: api.FunctionTool, Args: text})
		require.ErrorContains(t, err, "cannot share it among uids", "it is not passed over in silence")
		assert.JSONEq(t, `["x",true,true]`, runAt(t, a, "slot_0", "", api.SourcePython, add+"    # in its workspace"))
		assert.JSONEq(t, `["x",true,true]`, runAt(t, a, "slot_1", "", api.SourcePython, add))
		return
	}
	assert.JSONEq(t, `["x",true,true]`, runAt(t, a, "slot_0", "", api.SourcePython, add))
	assert.JSONEq(t, `["xx",true,true]`, runAt(t, a, "slot_1", "", api.SourcePython, add), "all slots see what one has written, as their own")
	_, err := a.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	assert.JSONEq(t, `["xxx",true,true]`, runAt(t, a, "slot_0", "", api.SourcePython, add), "a reset leaves it")
	assert.JSONEq(t, `["x",true,true]`, runAt(t, a, "slot_0", "below/more", api.SourcePython, add), "a directory below is made")
	const module = "def f():\n    open('ours.py', 'w').write('value = 7')\n    import ours\n    return ours.value"
	assert.Equal(t, "7", runAt(t, a, "slot_1", "below", api.SourcePython, module), "and what lies in it can be imported")
	text, err := os.ReadFile(filepath.Join(home, "below", "more", "kept"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(text))
	st, err := os.Stat(home)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), st.Mode().Perm(), "nobody else of the machine gets in")

	for _, directory := range []string{"../other", "/etc", "a/../../b"} {
		text, err := json.Marshal(api.FunctionArgs{Name: "f", SourceType: api.SourcePython, SourceCode: add, Directory: directory})
		require.NoError(t, err)
		_, err = a.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: api.FunctionTool, Args: text})
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, directory)
	}
	a.Kill()

	o.Dir = a.Dir
	b := agenttest.Start(t, o)
	assert.JSONEq(t, `["xxxx",true,true]`, runAt(t, b, "slot_1", "", api.SourcePython, add), "it outlives the container")
	need.Program(t, "node")
	const script = "const fs = require('fs')\nfunction f() { fs.appendFileSync('kept', 'y'); return [fs.readFileSync('kept', 'utf8'), process.cwd() === process.env.PWD] }"
	assert.JSONEq(t, `["xxxxy",true]`, runAt(t, b, "slot_0", "", api.SourceJavaScript, script))
}

func TestFunctionsRunInAHomeThatTheirSlotsShare(t *testing.T) {
	need.Program(t, "python3")
	for _, level := range agenttest.Levels(t) {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			functionsAtHome(t, agenttest.Options{Level: level})
		})
	}
}

func TestAnOrdinaryUsersFunctionsHaveAHome(t *testing.T) {
	need.Program(t, "python3")
	if os.Geteuid() != 0 {
		t.Skip("it is one that runs the other tests")
	}
	for _, level := range []slots.Level{slots.LevelNone, slots.LevelLandlock, slots.LevelNS} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			functionsAtHome(t, agenttest.Options{Level: level, UID: 65534})
		})
	}
}
