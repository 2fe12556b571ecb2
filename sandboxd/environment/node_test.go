package environment_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots/need"
)

func TestModulesAreInstalledFromTarballsAndRequired(t *testing.T) {
	need.Program(t, "npm")
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			p := newPlace(t, level, nil)
			p.module(t, "@scope/big", "1.0.0", `,"dependencies":{"small":"^1.0.0"},"scripts":{"postinstall":"node -e \"require('fs').writeFileSync('made','x')\""}`,
				"exports.value = require('small').value + 1")
			p.module(t, "small", "1.9.0", "", "exports.value = 40")
			p.module(t, "small", "1.10.0", "", "exports.value = 41")
			p.module(t, "small", "2.0.0", "", "exports.value = 0")
			e := p.ensure(t, p.node("@scope/big", "small ^1.0.0")).Environment
			modules := e.Path + "/node_modules"
			out, code := p.inSlot(t, "env", "NODE_PATH="+modules, "node", "-e", "console.log(require('@scope/big').value, process.versions.node)")
			require.Equal(t, 0, code, out)
			assert.Equal(t, "42 "+e.Interpreter+"\n", out, "the newest that fits")
			_, code = p.inSlot(t, "test", "-e", filepath.Join(modules, "@scope/big/made"))
			assert.Equal(t, 0, code, "its own script has run")
			_, code = p.inSlot(t, "sh", "-c", "echo > "+modules+"/small/index.js")
			assert.NotEqual(t, 0, code)
			assert.True(t, p.ensure(t, p.node("small ^1.0.0", "@scope/big")).Cached)
			assert.Equal(t, []string{"node ok"}, p.seen.built())
		})
	}
}

func TestModulesThatCannotBeInstalledAreNamed(t *testing.T) {
	need.Program(t, "npm")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.module(t, "small", "1.0.0", "", "")
	p.module(t, "broken", "1.0.0", `,"scripts":{"install":"exit 3"}`, "")
	p.module(t, "peer", "1.0.0", `,"peerDependencies":{"small":"^2.0.0"}`, "")
	f := p.refused(t, p.node("nothing-such"))
	assert.Equal(t, api.InstallNotFound, f.Reason)
	assert.Equal(t, "nothing-such", f.Requirement)
	f = p.refused(t, p.node("small ^3.0.0"))
	assert.Equal(t, api.InstallNotFound, f.Reason)
	assert.Equal(t, "small@^3.0.0", f.Requirement)
	f = p.refused(t, p.node("broken"))
	assert.Equal(t, api.InstallBuild, f.Reason)
	assert.Equal(t, "broken", f.Requirement)
	p.module(t, "small", "2.0.0", "", "")
	f = p.refused(t, p.node("peer", "small ^1.0.0"))
	assert.Equal(t, api.InstallConflict, f.Reason)
}
