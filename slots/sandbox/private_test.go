package sandbox_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox"
	"berth/slots/sandbox/sandboxtest"
)

// openPrivate opens a host whose slots have a private root, or skips.
func openPrivate(t *testing.T) *sandbox.Host {
	t.Helper()
	h, err := sandbox.Open(t.Context(), sandbox.Config{
		DataDir: sandboxtest.DataDir(t), Exe: sandboxtest.Agent(t), Slots: 2, Network: true, Attempt: slots.LevelNSCgroup, PrivateRoot: true,
	})
	need.Facility(t, "overlay", err)
	t.Cleanup(func() { assert.NoError(t, h.Close()) })
	return h
}

func openSlot(t *testing.T, h *sandbox.Host, name string) *sandbox.Sandbox {
	t.Helper()
	s, err := h.NewSandbox(t.Context(), name, 0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func TestAPrivateRootIsWritableAndVanishesWithAReset(t *testing.T) {
	h := openPrivate(t)
	a, b := openSlot(t, h, "slot_0"), openSlot(t, h, "slot_1")

	out, errs, exit := bash(t, a, `set -e
id -u; echo mine >/etc/berth-mark; touch /usr/bin/berth-mark; rm /etc/hostname 2>/dev/null || true
chown 33:33 /etc/berth-mark; stat -c %u:%g /etc/berth-mark; stat -c %u /etc/passwd`)
	require.Equal(t, 0, exit.Code, "%s%s", out, errs)
	assert.Equal(t, "0\n33:33\n0\n", out)

	out, _, _ = bash(t, b, `ls /etc/berth-mark /usr/bin/berth-mark 2>/dev/null | wc -l`)
	assert.Equal(t, "0\n", out, "the neighbour sees what was written")
	assert.NoFileExists(t, "/etc/berth-mark")
	assert.NoFileExists(t, "/usr/bin/berth-mark")

	r, err := a.Reset(t.Context())
	require.NoError(t, err)
	assert.True(t, r.Clean, "%+v", r.Checks)
	out, _, _ = bash(t, a, `ls /etc/berth-mark /usr/bin/berth-mark 2>/dev/null | wc -l`)
	assert.Equal(t, "0\n", out, "the next tenant sees what was written")
}

func TestAPrivateRootHidesWhatOnlyTheContainersRootMayRead(t *testing.T) {
	h := openPrivate(t)
	s := openSlot(t, h, "slot_0")
	dir, err := os.MkdirTemp("/root", "berth-test-") //nolint:usetesting // it must lie below /root
	if err != nil {
		need.Facility(t, "root", err)
	}
	defer os.RemoveAll(dir)
	out, _, _ := bash(t, s, "ls -A /root /home; mount -t tmpfs x /mnt; mknod /tmp/n c 1 3; umount /etc; echo; cat /proc/1/environ /proc/1/mem")
	assert.NotContains(t, out, "berth-test-")
	out, _, exit := bash(t, s, "mount -o remount,rw / || mknod /tmp/n b 254 0 || chroot / true || echo refused")
	assert.Equal(t, "refused\n", out)
	assert.Equal(t, 0, exit.Code)
}

func TestPackagesInstallInAPrivateRootAndVanishWithIt(t *testing.T) {
	h := openPrivate(t)
	s := openSlot(t, h, "slot_0")
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		need.Facility(t, "dpkg", err)
	}
	out, errs, exit := bash(t, s, `set -e
mkdir -p p/DEBIAN p/usr/bin
printf 'Package: berth-probe\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: a probe\n' >p/DEBIAN/control
printf '#!/bin/sh\necho installed\n' >p/usr/bin/berth-probe; chmod 755 p/usr/bin/berth-probe
dpkg-deb --root-owner-group -b p probe.deb >/dev/null
dpkg -i probe.deb >/dev/null
berth-probe; dpkg -s berth-probe | grep -c '^Status: install ok installed'`)
	require.Equal(t, 0, exit.Code, "%s%s", out, errs)
	assert.Equal(t, "installed\n1\n", out)
	_, err := s.Reset(t.Context())
	require.NoError(t, err)
	_, _, exit = bash(t, s, "berth-probe")
	assert.Equal(t, 127, exit.Code)
	_, err = exec.LookPath("berth-probe")
	assert.Error(t, err, "the package is installed in the container")
}

func TestWithoutTheMeansAPrivateRootIsRefusedAndSaidWhy(t *testing.T) {
	_, err := sandbox.Open(t.Context(), sandbox.Config{
		DataDir: sandboxtest.DataDir(t), Exe: sandboxtest.Agent(t), Attempt: slots.LevelLandlock, PrivateRoot: true,
	})
	var unmet *sandbox.UnmetError
	require.ErrorAs(t, err, &unmet)
	assert.Contains(t, err.Error(), "axis root: wanted private, got shared")
}
