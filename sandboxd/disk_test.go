package sandboxd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// mountable is a data directory below which tmpfs can be mounted, and is not
// any more when the test has ended.
func mountable(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(sandboxtest.DataDir(t), "data")
	require.NoError(t, os.MkdirAll(dir, 0o711))
	err := unix.Mount("test", dir, "tmpfs", 0, "size=4k")
	need.Facility(t, "mount", err)
	require.NoError(t, unix.Unmount(dir, 0))
	t.Cleanup(func() { unmountAll(t, dir) })
	return dir
}

func unmountAll(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
		}
	}
}

func TestASlotAtItsDiskLimitIsToldAndTheRestGoesOn(t *testing.T) {
	dir := mountable(t)
	levels := agenttest.Levels(t)
	o := agenttest.Options{
		Level: levels[len(levels)-1], Slots: 2, Dir: dir,
		Args: []string{"--disk-backend", "tmpfs", "--disk", "8MiB", "--disk-files", "500"},
	}
	a := agenttest.Start(t, o)
	assert.Contains(t, a.Log(), "tmpfs: the kernel refuses")
	health, err := a.Health(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "tmpfs-size", health.Isolation.Axes[slots.AxisDisk])

	lease, err := a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "one", TTLSeconds: 3600})
	require.NoError(t, err)
	try := func(a *agenttest.Agent, command string) (api.Result, error) {
		return a.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: "bash", Args: []byte(`{"command":"` + command + `"}`), Timeout: api.Seconds(120), Token: &lease.Token})
	}
	call := func(a *agenttest.Agent, command string) api.Result {
		r, err := try(a, command)
		require.NoError(t, err)
		return r
	}
	r := call(a, "head -c 20M /dev/zero > fill")
	assert.False(t, r.Success)
	assert.Contains(t, r.Output, "No space left")
	assert.Equal(t, true, r.Metadata.Details["disk_full"])
	place := client.Place{SlotID: "slot_0", Token: &lease.Token, Path: "upload"}
	// Short: of a long one that is refused early, the connection may be closed
	// before its sender has read why.
	_, err = a.PutFile(t.Context(), place, strings.NewReader(strings.Repeat("x", 64<<10)), client.PutOptions{})
	require.Error(t, err)
	assert.Equal(t, slots.KindTooLarge, slots.AsError(err).Kind)
	r = a.Bash(t, "slot_1", "head -c 6M /dev/zero > fill", 120)
	assert.True(t, r.Success, "%+v", r)
	assert.NotContains(t, r.Metadata.Details, "disk_full")
	assert.True(t, call(a, "rm fill; echo kept > file").Success)
	_, err = a.PutFile(t.Context(), place, strings.NewReader("text"), client.PutOptions{})
	require.NoError(t, err)
	a.Stop(t)

	b := agenttest.Start(t, o)
	assert.Equal(t, "kept\ntext", call(b, "cat file upload").Output, "files outlive the agent")
	b.Stop(t)

	unmountAll(t, dir) // as a machine that was off
	c := agenttest.Start(t, o)
	_, err = try(c, "cat file")
	require.Error(t, err, "the lease has ended with the files")
	assert.Equal(t, slots.KindFenced, slots.AsError(err).Kind)
	assert.Contains(t, c.Log(), "slot lost its files")
	require.Eventually(t, func() bool {
		all, err := c.Leases(t.Context())
		return err == nil && len(all) == 0
	}, time.Minute, 10*time.Millisecond)
	assert.Empty(t, c.Bash(t, "slot_0", "ls -A", 120).Output)
}
