package images_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const profile = "seccomp-slots.json"

// extra are the system calls that the agent needs to give slots namespaces
// and a root of their own. README.md says why each is allowed.
var extra = []string{
	"clone", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree",
	"pivot_root", "setdomainname", "sethostname", "setns", "umount2", "unshare",
}

// derived is Docker's default profile, and one rule more.
func derived(t *testing.T) []byte {
	t.Helper()
	p := seccomp.DefaultProfile()
	p.Syscalls = append(p.Syscalls, &seccomp.Syscall{
		LinuxSyscall: specs.LinuxSyscall{Names: extra, Action: specs.ActAllow},
		Comment:      "what a container of slots needs beyond the default, see README.md",
	})
	text, err := json.MarshalIndent(p, "", "\t")
	require.NoError(t, err)
	return append(text, '\n')
}

// BERTH_UPDATE=1 writes the file instead, for a new version of the default.
func TestProfileIsDockersDefaultAndTheExtraCalls(t *testing.T) {
	want := derived(t)
	if os.Getenv("BERTH_UPDATE") != "" {
		require.NoError(t, os.WriteFile(profile, want, 0o644))
	}
	have, err := os.ReadFile(profile)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(have), "BERTH_UPDATE=1 go test ./images writes it anew")
}

func TestProfileReadsBackAsDockerReadsIt(t *testing.T) {
	text, err := os.ReadFile(profile)
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var p seccomp.Seccomp
	require.NoError(t, decoder.Decode(&p))
	assert.Equal(t, specs.ActErrno, p.DefaultAction, "what no rule names is refused")
	last := p.Syscalls[len(p.Syscalls)-1]
	assert.Equal(t, extra, last.Names)
	assert.Equal(t, specs.ActAllow, last.Action)
	assert.Empty(t, last.Args)
	assert.Nil(t, last.Includes, "the rule holds without any capability")
	assert.True(t, slices.IsSorted(extra))
}

// Each extra call is in the README's table once, with the reason.
func TestReadmeSaysWhyEachExtraCallIsAllowed(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(readme), "| system calls | why |\n|---|---|\n")
	require.True(t, found)
	table, _, _ := strings.Cut(rest, "\n\n")
	var explained []string
	for row := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(row, "|")
		require.Len(t, cells, 4, row)
		require.NotEmpty(t, strings.TrimSpace(cells[2]), row)
		for _, m := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(cells[1], -1) {
			explained = append(explained, m[1])
		}
	}
	slices.Sort(explained)
	assert.Equal(t, extra, explained)
}

// The rest of the container stays under the default: what is dangerous and
// not needed must not slip in with the extra calls.
func TestProfileAllowsWithoutCapabilitiesOnlyWhatItMust(t *testing.T) {
	text, err := os.ReadFile(profile)
	require.NoError(t, err)
	var p seccomp.Seccomp
	require.NoError(t, json.Unmarshal(text, &p))
	allowed := map[string]bool{}
	errno := map[string]uint{}
	for _, rule := range p.Syscalls {
		if rule.Includes != nil && len(rule.Includes.Caps) > 0 {
			continue // not for a container that has only Docker's default capabilities less these
		}
		for _, name := range rule.Names {
			if rule.Action == specs.ActAllow {
				allowed[name] = true
			} else if rule.ErrnoRet != nil {
				errno[name] = *rule.ErrnoRet
			}
		}
	}
	for _, name := range extra {
		assert.True(t, allowed[name], name)
	}
	for _, name := range []string{
		"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "keyctl", "add_key", "request_key", "kexec_load",
		"init_module", "finit_module", "open_by_handle_at", "quotactl", "acct", "swapon", "reboot",
	} {
		assert.False(t, allowed[name], name)
	}
	assert.False(t, allowed["clone3"], "its flags lie in memory, where no filter sees them")
	assert.EqualValues(t, 38, errno["clone3"], "ENOSYS has libc fall back to clone")
}
