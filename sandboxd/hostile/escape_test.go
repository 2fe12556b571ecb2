package hostile_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox/sandboxtest"
)

// TestHostileE is family E of the catalogue: attacks on the container and the
// host.
func TestHostileE(t *testing.T) {
	besiege(t, []assault{
		{id: "E01_namespaces_and_mounts", probes: map[string]string{"E01.namespaces": "!syscalls=denylist+no-nested-userns", "E01.mounts": "!syscalls=denylist"}},
		{id: "E02_setuid_and_capabilities", probes: map[string]string{"E02.privileges": "basic", "E02.bounding": "uid"}, run: setuidFiles},
		{id: "E03_devices", probes: map[string]string{"E03.make": "!basic", "E03.open": "uid"}},
		{id: "E04_settings_of_the_kernel", probes: map[string]string{"E04.kernel": "landlock"}},
		{id: "E05_sockets_of_engines", probes: map[string]string{"E05.sockets": "uid", "E05.scheduler": "uid"}},
		{id: "E06_secrets_of_the_scheduler", probes: map[string]string{"E06.secrets": "landlock"}},
		{id: "E07_environment", probes: map[string]string{"E07.environment": "none", "E07.others": "agent=signals-only"}},
		{id: "E08_E09_addresses", probes: map[string]string{"E08.addresses": "net=loopback-only"}, run: commandWithoutNetwork},
		{id: "E10_system_calls", probes: map[string]string{"E10.syscalls": "!syscalls=denylist", "E10.foreign": "syscalls=denylist"}},
		{id: "E11_core_handlers", run: func(t *testing.T, _ *siege) { t.Log("see A18; a handler that the host pipes cores to is the host's") }},
		{id: "E12_chroot", probes: map[string]string{"E12.chroot": "!syscalls=denylist"}},
		{id: "E13_old_root", probes: map[string]string{"E13.root": "fs=mntns"}},
		{id: "E14_roots_and_namespaces_of_others", probes: map[string]string{"E14.init": "!syscalls=denylist"}},
		{id: "E15_raw_sockets", probes: map[string]string{"E15.raw": "basic"}},
		{id: "E16_time", probes: map[string]string{"E16.time": "!basic"}},
		{id: "E17_remount", probes: map[string]string{"E17.remount": "!syscalls=denylist"}},
		{id: "E18_nsenter", probes: map[string]string{"E18.nsenter": "!syscalls=denylist"}},
		{id: "E19_overlay_attributes", probes: map[string]string{"E19.overlay": "!basic"}},
		{id: "E20_groups", probes: map[string]string{"E20.groups": "landlock", "E20.zero": "uid"}},
	})
}

// TestHostileEWithoutANetwork runs the cases of the network where slots have
// none, and proves that what they do have works.
func TestHostileEWithoutANetwork(t *testing.T) {
	besiegeOffline(t, []assault{
		{id: "E08_E09_addresses", probes: map[string]string{"E08.addresses": "none", "E08.interfaces": "none", "A12.reach": "none"}},
		{id: "E08_the_loopback_works", run: func(t *testing.T, s *siege) {
			got := s.fire(t, "slot_0", nil, "E08.loopback")[0]
			assert.True(t, got.Open, "a server on the slot's own loopback cannot be reached: %s", got.Note)
		}},
		{id: "E15_raw_sockets", probes: map[string]string{"E15.raw": "none"}},
		{id: "X06_a_command_without_network", run: commandWithoutNetwork},
	})
}

// besiegeOffline runs the cases with --network off at the levels that can
// give it, and has the others refuse to start.
func besiegeOffline(t *testing.T, cases []assault) {
	attackProgram(t)
	for _, set := range settings(t) {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			if set.level < slots.LevelNS {
				refusesToStart(t, set.level)
				return
			}
			s := newSiege(t, set, "--network", "off")
			require.Equal(t, "loopback-only", s.isolation.Axes[slots.AxisNet])
			for _, c := range cases {
				t.Run(c.id, func(t *testing.T) {
					s.try(t, c.probes)
					if c.run != nil {
						c.run(t, s)
					}
				})
			}
		})
	}
}

// refusesToStart proves that a level without network namespaces does not
// serve as if the network were off.
func refusesToStart(t *testing.T, level slots.Level) {
	t.Helper()
	var log bytes.Buffer
	dir := filepath.Join(sandboxtest.DataDir(t), "data")
	serve := exec.CommandContext(t.Context(), sandboxtest.Agent(t), "serve", "--listen", "127.0.0.1:0", "--slots", "1", "--data-dir", dir,
		"--isolation-attempt", level.String(), "--isolation-require", level.String(), "--cgroups", "off", "--network", "off")
	serve.Stdout, serve.Stderr = &log, &log
	require.NoError(t, serve.Start())
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	select {
	case <-ended:
		const unmet = 78
		assert.Equal(t, unmet, serve.ProcessState.ExitCode(), log.String())
		assert.Contains(t, log.String(), "axis net: wanted loopback-only")
	case <-time.After(time.Minute):
		serve.Process.Kill() // it may have ended
		<-ended
		t.Errorf("serves with the network on\n%s", log.String())
	}
}

// commandWithoutNetwork has none at any level, or is refused.
func commandWithoutNetwork(t *testing.T, s *siege) {
	r, err := s.launch("slot_0", map[string]any{"allow_network": false}, "offline.addresses")
	if !s.promised(t, "syscalls=denylist") {
		kind := r.Metadata.ErrorKind
		if err != nil {
			kind = slots.AsError(err).Kind
		}
		assert.Equal(t, slots.KindUnavailable, kind)
		return
	}
	probes := []string{"offline.addresses", "E08.addresses", "A12.reach"}
	if s.isolation.Axes[slots.AxisNet] != "loopback-only" {
		probes = append(probes, "offline.sockets")
	}
	for _, f := range s.fire(t, "slot_0", map[string]any{"allow_network": false}, probes...) {
		assert.False(t, f.Open, "%s with allow_network false: %s", f.Name, f.Note)
	}
	assert.Equal(t, true, r.Metadata.Details["network_isolated"])
}

// setuidFiles has the owner of the machine leave setuid files of root in the
// workspace, as an image's own programs are.
func setuidFiles(t *testing.T, s *siege) {
	if os.Geteuid() != 0 || s.set.level < slots.LevelBasic {
		t.Log("needs root to make the files, and a level that promises")
		return
	}
	program := attackProgram(t)
	for name, mode := range map[string]os.FileMode{"suid": os.ModeSetuid | 0o755, "sgid": os.ModeSetgid | 0o755} {
		path := s.inside("slot_0", name)
		require.NoError(t, os.WriteFile(path, program, 0o755))
		require.NoError(t, os.Chown(path, 0, 0))
		require.NoError(t, os.Chmod(path, mode))
	}
	for _, f := range s.fire(t, "slot_0", nil, "E02.setuid") {
		assert.False(t, f.Open, f.Note)
		t.Log(f)
	}
	r := s.Bash(t, "slot_0", "su -c true </dev/null; sudo -n true; grep -E 'NoNewPrivs|CapEff' /proc/self/status", 120)
	t.Log(strings.TrimSpace(r.Output), fmt.Sprint(r.Metadata.Details))
	s.Bash(t, "slot_0", "rm -f suid sgid", 120)
}
