package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestEveryToolNamesTheArgumentThatHasTheWrongType(t *testing.T) {
	t.Parallel()
	cases := []struct{ tool, args, want string }{
		{"bash", `{}`, `argument "command" is missing`},
		{"bash", `{"command":null}`, `argument "command" is missing`},
		{"bash", `{"command":5}`, `argument "command" must be a string, not a number`},
		{"bash", `{"command":["ls"]}`, `argument "command" must be a string, not a list`},
		{"bash", `{"command":"a\u0000b"}`, `argument "command" must not contain a NUL byte`},
		{"bash", `{"command":"ls","allow_network":"no"}`, `argument "allow_network" must be true or false, not a string`},
		{"bash", `{"command":"ls","require_sandbox":1}`, `argument "require_sandbox" must be true or false, not a number`},
		{"bash", `{"command":"ls","env":[]}`, `argument "env" must be an object of strings, not a list`},
		{"bash", `{"command":"ls","env":{"A":1}}`, `argument "env" must hold strings only: "A" is a number`},
		{"bash", `{"command":"ls","env":{"A":null}}`, `argument "env" must hold strings only: "A" is null`},
		{"bash", `{"command":"ls","env":{"A=B":"x"}}`, `argument "env" has the name "A=B", which is empty or contains "=" or a NUL byte`},
		{"bash", `{"command":"ls","env":{"":"x"}}`, `argument "env" has the name "", which is empty or contains "=" or a NUL byte`},
		{"bash", `{"command":"ls","env":{"A":"x\u0000"}}`, `argument "env" has a NUL byte in the value of "A"`},
		{"bash", `{"command":"ls","cwd":"a\u0000"}`, `argument "cwd" must not contain a NUL byte`},
		{"bash", `{"command":"ls","cwd":` + quote(strings.Repeat("d", 5000)) + `}`, `argument "cwd" is 5000 bytes long (max 4095)`},
		{"bash", `{"command":"ls","stdin":{}}`, `argument "stdin" must be a string, not an object`},
		{"bash", `{"command":"ls","max_output":"all"}`, `argument "max_output" must be a whole number, not a string`},
		{"bash", `{"command":"ls","max_output":0}`, `argument "max_output" must be from 1 to 1000000, not 0`},
		{"bash", `{"command":"ls","max_output":1e9}`, `argument "max_output" must be from 1 to 1000000, not 1e9`},
		{"bash", `{"command":"ls","max_output":1.5}`, `argument "max_output" must be a whole number, not 1.5`},
		{"bash", `{"command":"ls","encoding":"hex"}`, `argument "encoding" must be one of text, base64, not "hex"`},
		{"bash", `["ls"]`, `args must be a JSON object, not a list`},
		{"bash", `"ls"`, `args must be a JSON object, not a string`},
		{"bash", `{`, `args must be a JSON object, not invalid JSON`},
		{"bash_stateful", `{}`, `argument "command" is missing`},
		{"bash_stateful", `{"restart":"yes"}`, `argument "restart" must be true or false, not a string`},
		{"read_file", `{}`, `argument "path" is missing`},
		{"read_file", `{"path":"a","limit":0}`, `argument "limit" must be from 1 to 9007199254740992, not 0`},
		{"read_file", `{"path":"a","offset":-1}`, `argument "offset" must be from 0 to 9007199254740992, not -1`},
		{"read_file", `{"path":"a","encoding":"base64","limit":3}`, `argument "encoding" cannot be base64 together with offset or limit`},
		{"write_file", `{"path":"a"}`, `argument "content" is missing`},
		{"write_file", `{"path":"a","content":{"x":1}}`, `argument "content" must be a string, not an object`},
		{"edit_file", `{"path":"a","old_string":"","new_string":"b"}`, `argument "old_string" must not be empty`},
		{"edit_file", `{"path":"a","old_string":"b","new_string":"b"}`, `argument "new_string" must differ from old_string`},
		{"list_dir", `{"path":7}`, `argument "path" must be a string, not a number`},
		{"list_dir", `{"max_entries":999999}`, `argument "max_entries" must be from 1 to 5000, not 999999`},
		{"glob", `{}`, `argument "pattern" is missing`},
		{"grep", `{"pattern":"x","output_mode":"lines"}`, `argument "output_mode" must be one of files_with_matches, content, count, not "lines"`},
		{"grep", `{"pattern":"x","glob":5}`, `argument "glob" must be a string or a list of strings, not a number`},
		{"grep", `{"pattern":"x","-A":-1}`, `argument "-A" must be from 0 to 1000, not -1`},
	}
	registry := New(Builtin(nil, "")...)
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s %.40s", c.tool, c.args), func(t *testing.T) {
			t.Parallel()
			tool, err := registry.Get(c.tool)
			require.NoError(t, err)
			r := tool.Run(t.Context(), &fakeSlot{}, newCall(t, c.args))
			assert.False(t, r.Success)
			assert.Equal(t, c.want, r.Error)
			assert.Equal(t, slots.KindBadRequest, r.Metadata.ErrorKind)
			assert.Equal(t, slots.ExecutedNever, r.Metadata.Executed)
		})
	}
}

func TestUnknownArgumentsAreIgnoredAndNullCountsAsAbsent(t *testing.T) {
	t.Parallel()
	s := &fakeSlot{run: prints("", "", 0)}
	r := bash{}.Run(t.Context(), s, newCall(t, `{"command":"ls","shell":"zsh","COMMAND":5,"env":null,"max_output":null,"stdin":null}`))
	require.True(t, r.Success, r.Error)
	assert.Nil(t, s.commands[0].Stdin)
}

func TestALongerEnvironmentThanTheKernelTakesIsRefused(t *testing.T) {
	t.Parallel()
	one := newCall(t, object{"command": "ls", "env": object{"A": strings.Repeat("x", maxEnvEntry)}})
	assert.Equal(t, `argument "env" has 131073 bytes under "A" (max 131071)`, bash{}.Run(t.Context(), &fakeSlot{}, one).Error)

	many := object{}
	for i := range 100_000 {
		many[fmt.Sprintf("V%d", i)] = "x"
	}
	r := bash{}.Run(t.Context(), &fakeSlot{}, newCall(t, object{"command": "ls", "env": many}))
	assert.Equal(t, `argument "env" is larger than 1048576 bytes in all`, r.Error)
	assert.Equal(t, slots.KindBadRequest, r.Metadata.ErrorKind)
}

func TestTheEnvironmentReachesTheCommandInOneOrder(t *testing.T) {
	t.Parallel()
	s := &fakeSlot{}
	bash{}.Run(t.Context(), s, newCall(t, `{"command":"ls","env":{"PATH":"/x","LD_PRELOAD":"","B":"a=b\nc"}}`))
	assert.Equal(t, []string{"B=a=b\nc", "LD_PRELOAD=", "PATH=/x"}, s.commands[0].Env)
}

func TestTheWindowOfWrongArgumentsIsTheDefault(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{
		``: DefaultWindow, `null`: DefaultWindow, `[]`: DefaultWindow, `{"max_output":7}`: 7, `{"max_output":7.0}`: 7,
		`{"max_output":"7"}`: DefaultWindow, `{"max_output":-1}`: DefaultWindow, `{"max_output":1e300}`: DefaultWindow,
	} {
		assert.Equal(t, want, Window(json.RawMessage(args)), args)
	}
}

func TestTheRegistryKnowsItsToolsAndRefusesOthers(t *testing.T) {
	t.Parallel()
	r := New(Builtin(nil, "")...)
	assert.Equal(t, []string{"bash", "bash_stateful", "edit_file", "function", "glob", "grep", "list_dir", "read_file", "write_file"}, r.Names())
	_, err := r.Get("rm")
	require.EqualError(t, err, "Unknown tool: rm")
	assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
	assert.Panics(t, func() { New(bash{}, bash{}) })
}

// FuzzArgs holds every tool to its promise: whatever the arguments, it answers
// and neither panics nor calls the slot with a NUL byte in a string that the
// kernel would cut there.
func FuzzArgs(f *testing.F) {
	f.Add("bash", `{"command":"ls","env":{"A":"b"},"cwd":"/tmp","stdin":"x"}`)
	f.Add("bash", `{"command":"\u0000","max_output":-5}`)
	f.Add("grep", `{"pattern":"(","glob":["*.go",5]}`)
	f.Add("read_file", `{"path":"a","offset":1e308}`)
	f.Add("edit_file", `[]`)
	registry := New(Builtin(nil, "")...)
	f.Fuzz(func(t *testing.T, name, args string) {
		tool, err := registry.Get(name)
		if err != nil {
			return
		}
		s := &fakeSlot{do: nothing, shell: nothingInShell}
		r := tool.Run(context.Background(), s, newCall(t, args))
		if r.Metadata.ErrorKind == slots.KindBadRequest {
			assert.False(t, r.Success)
			assert.NotEmpty(t, r.Error)
		}
		for _, c := range s.commands {
			for _, text := range append(append([]string{c.Cwd}, c.Argv...), c.Env...) {
				assert.NotContains(t, text, "\x00")
			}
		}
	})
}
