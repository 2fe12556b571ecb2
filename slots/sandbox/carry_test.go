package sandbox_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
	"berth/slots/workspace"
)

func TestAWorkspaceIsCarriedOverToTheNextAgent(t *testing.T) {
	for _, l := range []slots.Level{slots.LevelLandlock, slots.LevelUIDLandlock, slots.LevelNSCgroup} {
		if reachable(l) != l && l != slots.LevelNSCgroup {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			outside := filepath.Join(t.TempDir(), "outside")
			require.NoError(t, os.WriteFile(outside, []byte("the machine's"), 0o600))
			before, err := os.Lstat(outside)
			require.NoError(t, err)
			c := config(t)
			atLevel(l)(&c)
			h, err := sandbox.Open(t.Context(), c)
			require.NoError(t, err)
			for _, slot := range []string{"slot_0", "slot_1"} {
				s, err := h.NewSandbox(t.Context(), slot, 3)
				require.NoError(t, err)
				output(t, s, "mkdir -p a/b; echo kept > a/b/file; ln -s "+outside+" link; ln -s / up; echo x > /tmp/scratch; chmod 700 a")
				require.NoError(t, s.Close())
			}
			require.NoError(t, h.Close())

			// One that ends before it opens a slot leaves the files where they are.
			h, err = sandbox.Open(t.Context(), c)
			require.NoError(t, err)
			require.NoError(t, h.Close())

			h, err = sandbox.Open(t.Context(), c)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, h.Close()) })
			s, err := h.Reopen(t.Context(), "slot_0", 3)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, s.Close()) })
			assert.Equal(t, "kept\nmore\n", output(t, s, "echo more >> a/b/file; cat a/b/file; rm link up; ls /tmp/scratch 2>/dev/null; true"))
			var read bytes.Buffer
			require.NoError(t, s.Do(context.Background(), "read", workspace.ReadArgs{Path: "a/b/file", Length: -1}, nil, nil, &read))
			assert.Equal(t, "kept\nmore\n", read.String())
			after, err := os.Lstat(outside)
			require.NoError(t, err)
			assert.Equal(t, before.Sys(), after.Sys(), "what a link leads to keeps its owner")
			receipt, err := s.Reset(t.Context())
			require.NoError(t, err)
			assert.True(t, receipt.Clean)
			assert.Empty(t, output(t, s, "ls -A"))

			fresh, err := h.NewSandbox(t.Context(), "slot_1", 3)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, fresh.Close()) })
			assert.Empty(t, output(t, fresh, "ls -A"), "a slot that is due for a reset begins empty")
			none, err := h.Reopen(t.Context(), "slot_2", 0)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, none.Close()) })
			assert.Empty(t, output(t, none, "ls -A"), "one that never was as well")
		})
	}
}

func TestAWorkspaceIsNotLostToAnAgentThatEndsWhileItCarriesIt(t *testing.T) {
	c := config(t)
	h, err := sandbox.Open(t.Context(), c)
	require.NoError(t, err)
	s, err := h.NewSandbox(t.Context(), "slot_0", 0)
	require.NoError(t, err)
	output(t, s, "echo kept > file")
	require.NoError(t, s.Close())
	require.NoError(t, h.Close())
	reopened := func(what string) {
		h, err := sandbox.Open(t.Context(), c)
		require.NoError(t, err, what)
		defer func() { require.NoError(t, h.Close()) }()
		left, cancel := context.WithCancel(t.Context())
		cancel()
		if s, err := h.Reopen(left, "slot_0", 0); err == nil { // it fails after it has carried the workspace
			require.NoError(t, s.Close())
			return
		}
		s, err := h.Reopen(t.Context(), "slot_0", 0)
		require.NoError(t, err, what)
		assert.Equal(t, "kept\n", output(t, s, "cat file"), what)
		require.NoError(t, s.Close())
	}
	reopened("a start that failed")

	// interrupt leaves what an agent leaves that ends before or after it has
	// taken the workspace, and then the next two before they use it.
	interrupt := func(taken bool) {
		to, err := os.Readlink(filepath.Join(c.DataDir, "slots", "slot_0"))
		require.NoError(t, err)
		had, next := filepath.Join(c.DataDir, "kept", filepath.Base(to)), filepath.Join(c.DataDir, "live", "1-1")
		require.NoError(t, os.Rename(filepath.Join(c.DataDir, "live", filepath.Base(to)), had))
		require.NoError(t, os.Mkdir(next, 0o711)) //nolint:gosec // as the agent's own
		require.NoError(t, os.Symlink(filepath.Base(to), filepath.Join(next, "carried")))
		if taken {
			require.NoError(t, os.Rename(filepath.Join(had, "workspace"), filepath.Join(next, "workspace")))
		}
		for range 2 {
			h, err = sandbox.Open(t.Context(), c)
			require.NoError(t, err)
			require.NoError(t, h.Close())
		}
	}
	interrupt(false)
	reopened("ended before")
	interrupt(true)
	reopened("ended in between")
}
