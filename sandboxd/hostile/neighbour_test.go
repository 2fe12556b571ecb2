package hostile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// TestHostileX is family X of the catalogue: what one slot can do to another,
// at the same time or as its next tenant.
func TestHostileX(t *testing.T) {
	besiege(t, []assault{
		{id: "X01_files_of_the_neighbour", probes: map[string]string{"X01.paths": "landlock", "X01.stat": "uid", "X01.proc": "landlock", "X01.own": "fs=dac"}},
		{id: "X02_hard_links", probes: map[string]string{"X02.hardlink": "landlock"}},
		{id: "X03_processes_of_the_neighbour", probes: map[string]string{"X03.signal": "proc=uid", "X03.trace": "landlock", "X03.renice": "landlock"}},
		{id: "X04_X21_abstract_sockets", run: abstractSockets},
		{id: "X05_X21_sockets_with_a_path", probes: map[string]string{"X05.path": "uid"}},
		{id: "X06_loopback_servers", probes: map[string]string{"X06.loopback": "net=loopback-only"}},
		{id: "X07_places_that_all_may_write", probes: map[string]string{"X07.shared": "fs=dac+landlock"}},
		{id: "X08_system_v_objects", probes: map[string]string{"X08.sysv": "ipc=seccomp"}},
		{id: "X09_message_queues", probes: map[string]string{"X09.queue": "ipc=seccomp"}},
		{id: "X10_keyrings", probes: map[string]string{"X10.keyring": "syscalls=denylist"}},
		{id: "X11_watches_locks_and_leases", probes: map[string]string{"X11.watch": "uid", "X11.lease": "basic"}},
		{id: "X12_snooping_in_proc", probes: map[string]string{"X12.environ": "landlock", "X12.cmdline": "proc=pidns,procfs=fresh", "X12.net": "net=loopback-only"}},
		{id: "X13_load_and_timing", run: func(t *testing.T, s *siege) {
			t.Log("shared by the kernel, and documented: ", s.fire(t, "slot_0", nil, "X13.load"))
		}},
		{id: "X14_terminals", probes: map[string]string{"X14.pty": "uid"}},
		{id: "X16_attributes", probes: map[string]string{"X16.privileged": "!basic"}},
		{id: "X19_shared_programs", probes: map[string]string{"X19.writable": "landlock"}},
		{id: "X20_two_clients", run: twoClients},
		{id: "X22_socket_families", probes: map[string]string{"X22.families": "syscalls=denylist"}},
		{id: "X23_X24_inode_flags", probes: map[string]string{"X23.flags": "!syscalls=denylist"}},
		// Last, because it takes what the others look at.
		{id: "X07_X10_X15_X16_X17_X18_the_next_tenant", run: nextTenant},
	})
}

// TestHostileXWithoutANetwork looks for the neighbour's servers where slots
// have nothing but a loopback of their own.
func TestHostileXWithoutANetwork(t *testing.T) {
	besiegeOffline(t, []assault{
		{id: "X04_abstract_sockets", probes: map[string]string{"X04.abstract": "net=loopback-only"}},
		{id: "X06_loopback_servers", probes: map[string]string{"X06.loopback": "net=loopback-only"}},
		{id: "X12_tables_of_the_network", probes: map[string]string{"X12.net": "net=loopback-only"}},
	})
}

// abstractSockets are kept apart by Landlock where there is one new enough;
// where they are not, the agent says so itself.
func abstractSockets(t *testing.T, s *siege) {
	got := s.fire(t, "slot_0", nil, "X04.abstract")[0]
	said := strings.Contains(strings.Join(s.isolation.Weak, "; "), "abstract socket")
	if got.Open {
		assert.True(t, said, "open and not said: %s", got.Note)
	}
	t.Logf("%+v, said %v", got, said)
}

// twoClients call the same slot by its name.
func twoClients(t *testing.T, s *siege) {
	lease, err := s.Acquire(t.Context(), "slot_2", api.LeaseRequest{Trajectory: "one"})
	require.NoError(t, err)
	_, err = s.Acquire(t.Context(), "slot_2", api.LeaseRequest{Trajectory: "two"})
	assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind)
	wrong := lease.Token + 1
	for _, token := range []*uint64{nil, &wrong} {
		r, err := s.Execute(t.Context(), api.Call{SlotID: "slot_2", Tool: "bash", Args: []byte(`{"command":"echo in > in"}`), Token: token})
		kind := r.Metadata.ErrorKind
		if err != nil {
			kind = slots.AsError(err).Kind
		}
		assert.Equal(t, slots.KindFenced, kind)
		_, err = s.Reset(t.Context(), "slot_2", token)
		assert.Equal(t, slots.KindFenced, slots.AsError(err).Kind)
	}
	r, err := s.Execute(t.Context(), api.Call{SlotID: "slot_2", Tool: "bash", Args: []byte(`{"command":"ls -A"}`), Token: &lease.Token})
	require.NoError(t, err)
	assert.Empty(t, r.Output)
	_, err = s.Release(t.Context(), "slot_2", api.LeaseRelease{Token: lease.Token})
	require.NoError(t, err)
	// Without a lease, calls of both come one after the other.
	var both sync.WaitGroup
	for _, who := range []string{"a", "b"} {
		both.Go(func() {
			for range 5 {
				s.Try("slot_2", "[ -e busy ] && echo overlap >> overlaps; touch busy; sleep 0.02; rm busy; echo "+who+" >> calls", 120) // the file tells
			}
		})
	}
	both.Wait()
	assert.Equal(t, "10", strings.TrimSpace(s.Bash(t, "slot_2", "wc -l < calls; cat overlaps 2>/dev/null", 120).Output))
}

// nextTenant leaves everything that can be left, resets the slot, and looks
// for it from within and, as root, from outside.
func nextTenant(t *testing.T, s *siege) {
	s.renew(t, "slot_2")
	neighbours := s.targets
	defer func() { s.targets = neighbours }()
	s.targets.Secret, s.targets.Key = "left"+neighbours.Secret, neighbours.Key+1
	h := s.hold(t, "slot_2")
	t.Logf("the last tenant had %+v", h)
	s.Tool("slot_2", "bash_stateful", map[string]any{"command": "export LEFT=" + s.targets.Secret + "; left() { :; }; alias left=ls; cd /tmp; sleep 300 &"}, 120) // what it can leave
	r := s.Bash(t, "slot_2", `
mkdir -p .ssh .cache/pip .npm .config/systemd/user .local/bin; echo x > .ssh/authorized_keys; echo x > .npmrc; echo evil > .bashrc
mkdir deep; chmod 3777 deep; touch deep/f; chmod 6755 deep/f; chmod 000 deep; touch -- -rf '$(reboot)'; mkfifo pipe; ln -s / root
(echo '* * * * * true' | crontab -) 2>/dev/null; (echo true | at now) 2>/dev/null
[ -n "$TMPDIR" ] && touch "$TMPDIR/left"; id -u`, 120)
	uid, err := strconv.Atoi(strings.TrimSpace(r.Output))
	require.NoError(t, err, r.Output)
	s.renew(t, "slot_2")
	r = s.Bash(t, "slot_2", `ls -A . ; ls -A "$TMPDIR" 2>/dev/null; ls -A /tmp/berth-hostile-* /var/tmp/berth-hostile-* /dev/shm/berth-hostile-* /run/berth-hostile-* 2>/dev/null | grep "`+s.targets.Secret+`"; crontab -l 2>/dev/null; jobs`, 120)
	if s.promised(t, "landlock") {
		assert.Empty(t, strings.TrimSpace(r.Output), "left by the last tenant")
	}
	state, err := s.Tool("slot_2", "bash_stateful", map[string]any{"command": `echo "$LEFT"; type left; pwd; jobs`}, 120)
	require.NoError(t, err)
	assert.NotContains(t, state.Output, s.targets.Secret)
	s.arm(t, "slot_2")
	needs := map[string]string{"X07.shared": "fs=dac", "X08.sysv": "ipc=seccomp", "X09.queue": "ipc=seccomp", "X10.keyring": "syscalls=denylist", "X16.attributes": "basic"}
	for probe, what := range needs {
		s.judge(t, s.fire(t, "slot_2", nil, probe)[0], what)
	}
	if os.Geteuid() == 0 && s.promised(t, "uid") && !s.promised(t, "ns") {
		assert.Empty(t, ownedBy(uid), "files of the last tenant's uid")
	}
	trash, err := filepath.Glob(filepath.Join(s.Dir, "sandboxes", "live", "*", "workspace", "deep"))
	require.NoError(t, err)
	assert.Empty(t, trash)
}

// TestHostileXWithAPrivateRoot is X07, X17 to X19, E17 and E19 where a slot
// may write everywhere: nobody else sees it, and the next tenant does not.
func TestHostileXWithAPrivateRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Facility(t, "root", errors.New("a private root is made by an agent that may map ids"))
	}
	attackProgram(t)
	for _, set := range settings(t) {
		if set.level < slots.LevelNS || set.uid != 0 {
			continue // a private root is a view of its own, made by root
		}
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			private := []string{"--root", "private"}
			need.Facility(t, "overlay", agenttest.Offers(t, set.level, set.uid, append(private, "--data-dir", publicDir(t))...))
			s := newSiege(t, set, private...)
			// The agent's file is in the root: of that the slot may write a copy of its own.
			agent := sandboxtest.Agent(t)
			s.targets.Binaries = slices.DeleteFunc(s.targets.Binaries, func(path string) bool { return path == agent })
			was, err := os.ReadFile(agent)
			require.NoError(t, err)
			s.try(t, map[string]string{
				"A01.signals": "none", "A03.trace": "none", "A05.agent": "none", "A06.tuning": "none", "A07.scheduling": "none", "A12.reach": "none", "A20.tty": "none",
				"X01.paths": "none", "X01.proc": "none", "X02.hardlink": "none", "X03.signal": "none", "X05.path": "none", "X08.sysv": "none", "X10.keyring": "none",
				"X22.families": "none", "X23.flags": "none", "E01.namespaces": "none", "E02.setuid": "none", "E03.make": "none", "E05.scheduler": "none",
				"E07.others": "none", "E10.syscalls": "none", "E10.foreign": "none", "E12.chroot": "none", "E15.raw": "none", "E16.time": "none",
				"X07.shared": "none", "A05.files": "none", "A09.binary": "none", "E01.mounts": "none", "E03.open": "none",
				"E04.kernel": "none", "E06.secrets": "none", "E13.root": "none", "E14.init": "none", "E17.remount": "none",
			})
			mark := "private-" + s.targets.Secret
			wrote := s.Bash(t, "slot_0", `
for f in /etc/`+mark+` /usr/local/bin/`+mark+` /`+mark+` /var/spool/`+mark+` /opt/`+mark+`; do echo '#!/bin/sh' > $f; done
echo /workspace/evil.so > /etc/ld.so.preload; echo evil > /etc/profile.d/`+mark+`.sh; rm -rf /usr/share/doc; mkdir /usr/share/doc
echo '`+mark+`' >> /etc/hosts; echo '`+mark+`' >> /etc/passwd; rm -f `+agent+`; echo evil > `+agent+`
ls -d /etc/`+mark+` /usr/local/bin/`+mark, 120)
			assert.Contains(t, wrote.Output, "/etc/"+mark, "the root is not writable: %s", wrote.Error)
			seen := `ls -d /etc/` + mark + ` /usr/local/bin/` + mark + ` /` + mark + ` /var/spool/` + mark + ` /opt/` + mark + ` /etc/profile.d/` + mark + `.sh 2>/dev/null; grep -l ` + mark + ` /etc/hosts /etc/passwd; cat /etc/ld.so.preload 2>/dev/null`
			assert.Empty(t, strings.TrimSpace(s.Bash(t, "slot_1", seen, 120).Output), "what the neighbour sees")
			for _, path := range []string{"/etc/" + mark, "/usr/local/bin/" + mark, "/" + mark, "/etc/ld.so.preload", "/opt/" + mark} {
				assert.NoFileExists(t, path, "in the container itself")
			}
			is, err := os.ReadFile(agent)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(was, is), "the agent's file has changed")
			s.renew(t, "slot_0")
			assert.Empty(t, strings.TrimSpace(s.Bash(t, "slot_0", seen, 120).Output), "what the next tenant sees")
			assert.Equal(t, s.Bash(t, "slot_1", "ls /usr/share/doc | wc -l", 120).Output, s.Bash(t, "slot_0", "ls /usr/share/doc | wc -l", 30).Output)
		})
	}
}
