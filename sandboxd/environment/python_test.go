package environment_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots/need"
)

func TestPackagesAreInstalledOnceAndImportedByEverySlot(t *testing.T) {
	need.Program(t, "pip")
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, level, nil)
			p.wheel(t, "big-thing", "1.0", "import small\nvalue = small.value + 1\ndef main(): print(value)\n", "small>=1")
			p.wheel(t, "small", "1.5", "value = 41\n")
			spec := p.python("Big_Thing 1.0")
			first := p.ensure(t, spec)
			e := first.Environment
			assert.False(t, first.Cached)
			assert.Positive(t, first.BuildMS)
			assert.Equal(t, api.EnvironmentReady, e.State)
			assert.Positive(t, e.SizeBytes)
			assert.Equal(t, []api.Requirement{{Name: "big-thing", Version: "==1.0"}}, e.Requirements)

			python := e.Path + "/bin/python3"
			out, code := p.inSlot(t, python, "-c", "import sys, big_thing; print(big_thing.value, big_thing.__cached__ is not None, '%d.%d.%d' % sys.version_info[:3])")
			require.Equal(t, 0, code, out)
			assert.Equal(t, "42 True "+e.Interpreter+"\n", out)
			out, code = p.inSlot(t, "sh", "-c", e.Path+"/bin/big-thing")
			require.Equal(t, 0, code, out)
			assert.Equal(t, "42\n", out, "its scripts find their interpreter")
			_, code = p.inSlot(t, "sh", "-c", "echo 'value = 0' > "+e.Path+"/lib/python3*/site-packages/small.py")
			assert.NotEqual(t, 0, code, "no slot changes it")
			_, code = p.inSlot(t, "ls", e.Path+"/.build")
			assert.NotEqual(t, 0, code, "what the build needed is gone")

			again := p.ensure(t, spec)
			assert.True(t, again.Cached)
			assert.Equal(t, []string{"python ok"}, p.seen.built())
			receipt, err := p.slot.Reset(t.Context())
			require.NoError(t, err)
			assert.True(t, receipt.Clean, "%+v", receipt)
			out, _ = p.inSlot(t, python, "-c", "import big_thing; print(big_thing.value)")
			assert.Equal(t, "42\n", out)
		})
	}
}
