package sandbox_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/need"
	"berth/slots/probe"
	"berth/slots/sandbox"
	"berth/slots/sandbox/sandboxtest"
)

func TestTwoAgentsOfOneMachineNeverShareAUID(t *testing.T) {
	if !probe.Take().CanSwitch() {
		need.Facility(t, "root", os.ErrPermission)
	}
	seen := map[uint32]bool{}
	var slotsOf []*sandbox.Sandbox
	for range 2 {
		h, err := sandbox.Open(t.Context(), sandbox.Config{
			DataDir: sandboxtest.DataDir(t), Exe: sandboxtest.Agent(t), Network: true, Attempt: slots.LevelUID, NoCgroup: true,
		})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, h.Close()) })
		s, err := h.NewSandbox(t.Context(), "slot_0", 0)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, s.Close()) })
		st, err := os.Stat(s.Workspace())
		require.NoError(t, err)
		uid := st.Sys().(*syscall.Stat_t).Uid
		assert.False(t, seen[uid], "uid %d is used twice", uid)
		seen[uid] = true
		slotsOf = append(slotsOf, s)
	}
	// A reset kills by uid: the other agent's slot must not notice.
	_, err := slotsOf[0].Reset(t.Context())
	require.NoError(t, err)
	out, _, exit := bash(t, slotsOf[1], "echo alive")
	assert.Equal(t, 0, exit.Code)
	assert.Equal(t, "alive\n", out)
}

func TestOnlySlotsUIDsAreSlots(t *testing.T) {
	for uid, want := range map[int]bool{
		0: false, 1000: false, 60999: false, 61000: true, 61000 + 4095: true, 61000 + 4096: false, 65534: false,
		1<<20 - 1: false, 1 << 20: true, 1<<20 + 70000: true, 1<<20 + 4096<<16: false,
	} {
		assert.Equal(t, want, sandbox.IsSlotUID(uid, 61000), "uid %d", uid)
	}
}
