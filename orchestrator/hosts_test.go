package orchestrator_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// asLocal runs a Python function of the privileged organization.
func (i *instance) asLocal(organization, body, config string) (poolapi.ToolResult, error) {
	i.t.Helper()
	need.Program(i.t, "python3")
	o, yes := i.connect(i.url, operatorToken).Organization(organization), true
	_, err := o.Patch(i.t.Context(), poolapi.OrganizationPatch{PrivilegedTools: &yes})
	require.NoError(i.t, err)
	run := poolapi.ToolRun{Tool: poolapi.Tool{Name: "f", SourceType: "python", SourceCode: "import os\ndef f():\n" + body}, Sandbox: &poolapi.ToolSandbox{}}
	if config != "" {
		run.Sandbox.Type, run.Sandbox.Config = poolapi.SandboxLocal, json.RawMessage(config)
	}
	return o.RunTool(i.t.Context(), run)
}

func (i *instance) mustLocal(organization, body, config string) string {
	i.t.Helper()
	r, err := i.asLocal(organization, body, config)
	require.NoError(i.t, err)
	require.Equal(i.t, "success", r.Status, "%s", r.Text)
	assert.Equal(i.t, poolapi.SandboxLocal, r.Sandbox.Type)
	return string(r.FuncReturn)
}

func TestSlotsMayPassThroughADataDirectoryThatWasNotThere(t *testing.T) {
	dir := filepath.Join(sandboxtest.DataDir(t), "not", "yet")
	start(t, dir)
	for path, mode := range map[string]os.FileMode{"..": 0o711, ".": 0o711, "local": 0o711, "homes": 0o700, "config": 0o700} {
		info, err := os.Stat(filepath.Join(dir, path))
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode().Perm(), path)
	}
}

func TestLocalRunsAreInTheirOrganizationsOwnDirectory(t *testing.T) {
	const write, look = "    open('kept', 'a').write('x')\n    return open('kept').read()", "    return sorted(os.listdir('.'))"
	dir := sandboxtest.DataDir(t)
	i := start(t, dir, "--containers", "1")
	assert.Equal(t, `"x"`, i.mustLocal("acme", write, ""))
	assert.Equal(t, `"xx"`, i.mustLocal("acme", write, ""))
	assert.JSONEq(t, `[]`, i.mustLocal("globex", look, ""), "it is nobody else's")
	home := filepath.Join(dir, "homes", "acme")
	below := fmt.Sprintf(`{"sandbox_dir":%q}`, filepath.Join(home, "below"))
	assert.Equal(t, `"x"`, i.mustLocal("acme", write, below))
	assert.JSONEq(t, `["below","kept"]`, i.mustLocal("acme", look, fmt.Sprintf(`{"sandbox_dir":%q}`, home)))
	// Neither another organization's container nor a slot of the pool gets there.
	reach := fmt.Sprintf("    return [os.path.exists(os.path.join(p, 'kept')) for p in (%q, '/run/home', '/proc/1/root' + %q)]", home, home)
	assert.JSONEq(t, `[false,false,false]`, i.mustLocal("globex", reach, ""))
	run := poolapi.ToolRun{Tool: poolapi.Tool{Name: "f", SourceType: "python", SourceCode: "import os\ndef f():\n" + reach}, Sandbox: &poolapi.ToolSandbox{Type: poolapi.SandboxIsolated}}
	got, err := i.connect(i.url, trainerToken).Organization("acme").RunTool(t.Context(), run)
	require.NoError(t, err)
	assert.JSONEq(t, `[false,false,false]`, string(got.FuncReturn), "%s", got.Text)

	for _, elsewhere := range []string{"/etc", filepath.Join(dir, "homes", "globex"), filepath.Join(dir, "homes"), home + "/../globex", home + "x"} {
		_, err := i.asLocal("acme", look, fmt.Sprintf(`{"sandbox_dir":%q}`, elsewhere))
		assert.Equal(t, slots.KindBadRequest, kindOf(err), "%s: %v", elsewhere, err)
	}

	// The requirements.txt of the directory counts, and is no way out of it.
	assert.Equal(t, `1`, i.mustLocal("acme", "    return open('requirements.txt', 'w').write('#')", ""))
	assert.JSONEq(t, `["below","kept","requirements.txt"]`, i.mustLocal("acme", look, ""))
	assert.Equal(t, `26`, i.mustLocal("acme", "    os.remove('requirements.txt')\n    return open('requirements.txt', 'w').write('berth-no-such-pkg\\n-r x.txt')", ""))
	_, err = i.asLocal("acme", look, "")
	require.ErrorContains(t, err, "line 2 of requirements.txt")
	secret := filepath.Join(t.TempDir(), "requirements.txt")
	require.NoError(t, os.WriteFile(secret, []byte("hunter2 hunter2"), 0o600))
	for _, plant := range []string{"os.symlink(" + fmt.Sprintf("%q", secret) + ", 'requirements.txt')", "os.mkfifo('requirements.txt')", "os.mkdir('requirements.txt')"} {
		body := "    import shutil\n    p = '../requirements.txt'\n    shutil.rmtree(p) if os.path.isdir(p) and not os.path.islink(p) else os.path.lexists(p) and os.remove(p)\n    os.chdir('..')\n    " + plant
		i.mustLocal("acme", body, below)
		_, err = i.asLocal("acme", look, "")
		require.ErrorContains(t, err, "requirements.txt of the sandbox_dir cannot be read", plant)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	i.mustLocal("acme", "    os.rmdir('../requirements.txt')", below)
	i.stop()

	i = start(t, dir, "--containers", "1")
	assert.Equal(t, `"xxx"`, i.mustLocal("acme", write, ""), "it outlives the container and the orchestrator")
}
