package hostile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
)

// TestHostileA is family A of the catalogue: attacks on the agent. A13 and
// A19, forged messages and statuses of a holder, need a holder that lies:
// they are tests of package holder.
func TestHostileA(t *testing.T) {
	besiege(t, []assault{
		{id: "A01_signals", probes: map[string]string{"A01.signals": "agent=hidden", "A01.survive": "none"}},
		{id: "A02_signals_to_everyone", run: signalEveryone},
		{id: "A03_trace", probes: map[string]string{"A03.trace": "agent=signals-only"}},
		{id: "A04_foreign_memory", probes: map[string]string{"A04.memory": "agent=signals-only"}},
		{id: "A05_files_of_proc", probes: map[string]string{"A05.agent": "agent=signals-only", "A05.spawner": "agent=signals-only", "A05.files": "agent=hidden"}},
		{id: "A06_tuning_by_proc", probes: map[string]string{"A06.tuning": "agent=hidden"}},
		{id: "A07_limits_and_priorities", probes: map[string]string{"A07.scheduling": "agent=hidden"}},
		{id: "A08_descriptors", probes: map[string]string{"A08.descriptors": "agent=signals-only", "A08.signal": "agent=hidden"}},
		{id: "A09_overwrite_the_binary", probes: map[string]string{"A09.binary": "landlock", "A09.mode": "uid"}},
		{id: "A10_planted_programs", run: plantedPrograms},
		{id: "A11_inherited_descriptors", probes: map[string]string{"A11.fds": "none"}, run: inheritedDescriptors},
		{id: "A12_the_agents_own_port", probes: map[string]string{
			"A12.reach": "net=host-minus-agent-port", "A12.guess": "none", "A12.hijack": "none",
		}, run: raceTheGuard},
		{id: "A14_A15_log_injection", run: injectIntoLog},
		{id: "A16_fill_the_log", run: fillLog},
		{id: "A17_idle_and_slow_connections", probes: map[string]string{"A17.crowd": "none"}},
		{id: "A18_core_dumps", probes: map[string]string{"A18.core": "basic", "A18.agent": "landlock"}, run: noCores},
		{id: "A20_terminals", probes: map[string]string{"A20.tty": "syscalls=denylist"}},
	})
}

// signalEveryone may cost the slot its own holder, and nobody else anything.
func signalEveryone(t *testing.T, s *siege) {
	if !s.promised(t, "agent=hidden,proc=uid") {
		t.Skip("not promised: slots and agent can signal each other, and the machine's other processes with them")
	}
	t.Cleanup(func() { s.targets.Marker = "" })
	if s.promised(t, "proc=pidns") {
		s.targets.Marker = "own pids"
	}
	for _, probe := range []string{"A02.everyone", "A02.freeze", "A02.init"} {
		if probe == "A02.init" && !s.promised(t, "proc=pidns") {
			continue
		}
		r, err := s.Tool("slot_0", "bash", map[string]any{"command": commandOf(t, s, probe)}, 3)
		t.Logf("%s: %v %q %v %s", probe, err, r.Output, r.Error, r.Metadata.ErrorKind)
		assert.NotContains(t, r.Output, `"open":true`)
		s.usable(t, "slot_0")
		if probe == "A02.init" {
			assert.Empty(t, r.Metadata.ErrorKind, "PID 1 of the slot must survive every signal from inside")
		}
	}
}

func commandOf(t *testing.T, s *siege, probe string) string {
	t.Helper()
	text := mustJSON(t, s.targets)
	return "./attacker run '" + text + "' " + probe
}

// plantedPrograms leaves programs and start files wherever a shell or an
// interpreter might look, and sees who runs them.
func plantedPrograms(t *testing.T, s *siege) {
	plant := `
touch_() { printf '#!/bin/sh\necho ran $0 $* >> "%s/ran"\nexit 0\n' "$PWD" > "$1"; chmod 755 "$1"; }
for f in bash sh cat ls true env rm dirname .bashrc .profile .bash_profile .bash_login .bash_logout .inputrc .env bash_env; do touch_ $f; done
mkdir -p bin .local/bin; for f in bash sh cat; do touch_ bin/$f; touch_ .local/bin/$f; done
echo "open('$PWD/ran','a').write('python')" | tee sitecustomize.py usercustomize.py >/dev/null
export BASH_ENV=$PWD/bash_env ENV=$PWD/bash_env LD_PRELOAD=$PWD/evil.so PYTHONSTARTUP=$PWD/sitecustomize.py PATH=$PWD:$PATH PROMPT_COMMAND='touch ran' SHELLOPTS PS4='$(touch ran)'
rm -f ran`
	for _, tool := range []string{"bash", "bash_stateful"} {
		_, err := s.Tool("slot_0", tool, map[string]any{"command": plant}, 120)
		require.NoError(t, err)
	}
	_, err := s.Tool("slot_0", "bash", map[string]any{"command": "true", "env": map[string]string{"BASH_ENV": "bash_env", "PATH": "/nowhere:/usr/bin:/bin", "LD_PRELOAD": "evil.so"}}, 120)
	require.NoError(t, err)
	s.Bash(t, "slot_0", "command rm -f ran", 120)
	seen := func(tool string, args map[string]any) {
		r, err := s.Tool("slot_0", tool, args, 120)
		require.NoError(t, err)
		assert.Empty(t, r.Error, "%s %v", tool, args)
		assert.NotContains(t, r.Output, "ld.so", "an LD_PRELOAD of another execution is in force")
		assert.NoFileExists(t, s.inside("slot_0", "ran"), "%s %v ran what a slot had planted", tool, args)
	}
	seen("bash", map[string]any{"command": `[ -z "$BASH_ENV$ENV$LD_PRELOAD$PYTHONSTARTUP$PROMPT_COMMAND" ] && cat attacker >/dev/null && case "$PATH" in /usr/*) ;; *) exit 3 ;; esac`})
	seen("bash", map[string]any{"command": "true", "background": true})
	seen("bash", map[string]any{"command": "cat", "stdin": "x"})
	seen("bash", map[string]any{"command": "#" + strings.Repeat("x", 200<<10) + "\ntrue"})
	if s.promised(t, "syscalls=denylist") {
		seen("bash", map[string]any{"command": "true", "allow_network": false})
	}
	seen("write_file", map[string]any{"path": "a", "content": "x"})
	seen("read_file", map[string]any{"path": "a"})
	seen("edit_file", map[string]any{"path": "a", "old_string": "x", "new_string": "y"})
	seen("list_dir", map[string]any{"path": "."})
	seen("glob", map[string]any{"pattern": "**"})
	seen("grep", map[string]any{"pattern": "y"})
	s.renew(t, "slot_0")
	r, err := s.Tool("slot_0", "bash_stateful", map[string]any{"command": `echo "$BASH_ENV$LD_PRELOAD$PROMPT_COMMAND"; ls -A`}, 120)
	require.NoError(t, err)
	assert.Empty(t, strings.TrimSpace(r.Output), "of the last tenant")
	s.arm(t, "slot_0")
}

// inheritedDescriptors looks at every way to run a command.
func inheritedDescriptors(t *testing.T, s *siege) {
	ways := []map[string]any{{"stdin": "x"}, {"background": true}, {"separate": true}, {"max_output": 10000}}
	if s.promised(t, "syscalls=denylist") {
		ways = append(ways, map[string]any{"allow_network": false})
	}
	for _, args := range ways {
		for _, f := range s.fire(t, "slot_0", args, "A11.fds") {
			assert.False(t, f.Open, "%v: %s", args, f.Note)
		}
	}
	r, err := s.Tool("slot_0", "bash_stateful", map[string]any{"command": commandOf(t, s, "A11.fds")}, 120)
	require.NoError(t, err)
	assert.Contains(t, r.Output, `"open":false`, "in the persistent shell: %s", r.Output)
}

// raceTheGuard sends calls with the true token from sockets that are closed
// at once.
func raceTheGuard(t *testing.T, s *siege) {
	s.targets.Marker = "reached"
	t.Cleanup(func() { s.targets.Marker = "" })
	s.fire(t, "slot_0", nil, "A12.race")
	time.Sleep(200 * time.Millisecond)
	r := s.Bash(t, "slot_1", "cat reached 2>/dev/null | wc -l; rm -f reached", 120)
	count := strings.TrimSpace(r.Output)
	if s.promised(t, "net=host-minus-agent-port") {
		assert.Equal(t, "0", count, "calls that a slot got through to its neighbour with a leaked token")
		return
	}
	t.Logf("not promised: %s calls with the true token came through", count)
}

const forged = "2026-01-01T00:00:00.000Z [ERROR] sandboxd: FORGED"

// injectIntoLog puts line ends and terminal escapes wherever a client or a
// slot has a say.
func injectIntoLog(t *testing.T, s *siege) {
	evil := "x\r\n" + forged + "\n" + forged + "\x1b]0;title\x07\x1b[2J\u0085\u2028" + forged + "\x00end"
	for _, args := range []map[string]any{
		{"command": "echo '" + strings.ReplaceAll(evil, "\x00", "") + "'"}, {"command": evil}, {"command": "true", "cwd": evil}, {"command": "true", "env": map[string]string{evil: evil}},
	} {
		s.Tool("slot_0", "bash", args, 10) // the log is looked at
	}
	for _, tool := range []string{"read_file", "write_file", "list_dir", "glob", evil} {
		s.Tool("slot_0", tool, map[string]any{"path": evil, "content": evil, "pattern": evil}, 10) // the log is looked at
	}
	s.Tool(evil, "bash", map[string]any{"command": "true"}, 10)                                                             // the log is looked at
	s.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: "bash", ExecutionID: evil, Args: []byte(`{"command":"true"}`)}) // the log is looked at
	s.Bash(t, "slot_0", "printf '%s' $'"+strings.ReplaceAll(strings.ReplaceAll(evil, "\x00", ""), "'", "")+"' >&2; kill -SEGV $$", 10)
	lease, err := s.Acquire(t.Context(), "slot_2", api.LeaseRequest{Trajectory: evil, Labels: map[string]string{evil: evil}})
	if err == nil {
		_, err = s.Release(t.Context(), "slot_2", api.LeaseRelease{Token: lease.Token})
		require.NoError(t, err)
	}
	s.Send(t, "GET", "/slots?x=%0a%1b[2J"+strings.ReplaceAll(forged, " ", "%20"), "")
	s.Send(t, "POST", "/execute", "{\""+strings.ReplaceAll(evil, "\n", "\\n"), "User-Agent: \t[2J "+forged, "X-Request-Id: "+forged)
	for line := range strings.Lines(s.Log()) {
		line = strings.TrimRight(line, "\n")
		assert.False(t, strings.HasPrefix(line, "2026-01-01T") || strings.HasPrefix(line, forged), "a forged line: %q", line)
		assert.False(t, strings.ContainsAny(line, "\x1b\x07\r\x00\u0085\u2028"), "a raw control character: %q", line)
	}
}

// fillLog lets a slot do a thousand things that an agent might log.
func fillLog(t *testing.T, s *siege) {
	before := strings.Count(s.Log(), "\n")
	s.fire(t, "slot_0", nil, "A12.guess", "A17.crowd", "A01.survive")
	for n := range 50 {
		s.Tool("slot_0", "bash", map[string]any{"command": fmt.Sprintf("echo %d; exit %d", n, n)}, 10) // the log is looked at
	}
	grown := strings.Count(s.Log(), "\n") - before
	t.Logf("%d lines more", grown)
	if s.promised(t, "agent=hidden,net=host-minus-agent-port") {
		assert.Less(t, grown, 60, "lines of log that a slot can cause")
	}
}

// noCores checks the limits of all the agent's processes, from outside.
func noCores(t *testing.T, s *siege) {
	for _, pid := range s.targets.Pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "Max core file size") {
				assert.Regexp(t, `^Max core file size +1 +1`, line, "of process %d", pid)
			}
		}
	}
	if !s.promised(t, "basic") {
		return
	}
	r := s.Bash(t, "slot_0", "ulimit -Hc; ulimit -c unlimited 2>/dev/null; sh -c 'kill -SEGV $$'; ls", 120)
	assert.True(t, strings.HasPrefix(r.Output, "0\n"), r.Output)
	cores, err := filepath.Glob(s.inside("slot_0", "core*"))
	require.NoError(t, err)
	assert.Empty(t, cores)
}
