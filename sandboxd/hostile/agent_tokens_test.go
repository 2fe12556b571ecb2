package hostile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/slots"
)

// TestHostileTokens has a slot look for the agent's tokens where it has the
// agent's user: however their files are named, and after they were replaced.
func TestHostileTokens(t *testing.T) {
	users := []int{0}
	if os.Geteuid() == 0 {
		users = append(users, another)
	}
	for _, user := range users {
		for _, level := range []slots.Level{slots.LevelLandlock, slots.LevelNS} {
			name := level.String()
			if user != 0 {
				name += " as another user"
			}
			if err := agenttest.Offers(t, level, user); err != nil {
				t.Logf("%s is not offered: %v", name, err)
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				lookForTokens(t, level, user)
			})
		}
	}
}

func lookForTokens(t *testing.T, level slots.Level, user int) {
	home := publicDir(t)
	at := func(path ...string) string { return filepath.Join(append([]string{home}, path...)...) }
	token := "token-of-" + strings.ReplaceAll(t.Name(), "/", "-")
	// leave writes a token as the agent's user does.
	leave := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if user != 0 {
			require.NoError(t, os.Chown(path, user, user))
		}
	}
	// As an editor leaves it, and as a container scheduler mounts it.
	leave(at("plain", "token"), token)
	leave(at("mounted", "..1", "metrics"), "metrics-"+token)
	require.NoError(t, os.Symlink("..1", at("mounted", "..data")))
	require.NoError(t, os.Symlink("..data/metrics", at("mounted", "metrics")))
	leave(at("else", "key"), "key-"+token)
	require.NoError(t, os.WriteFile(at("plain.txt"), []byte("token of nobody"), 0o644))

	here, err := os.Getwd()
	require.NoError(t, err)
	relative, err := filepath.Rel(here, at("plain", "token"))
	require.NoError(t, err)
	a := agenttest.Start(t, agenttest.Options{Level: level, UID: user, Slots: 2, Args: []string{
		"--token-file", relative, "--metrics-token-file", at("mounted", "metrics"), "--hide", at("else", "key"),
	}})
	look := func(slot string) {
		t.Helper()
		seen := a.Bash(t, slot, "cd "+home+"; grep -rs token .; cat plain.txt plain/token mounted/metrics mounted/..{data,1,2}/metrics else/key; true", 60).Output
		if filepath.Dir(home) == "/opt" { // or where slots see nothing at all
			assert.Contains(t, seen, "token of nobody", "the place itself is seen")
		}
		assert.NotContains(t, seen, token)
	}
	look("slot_0")

	leave(at("plain", "token.new"), token+"-2")
	require.NoError(t, os.Rename(at("plain", "token.new"), at("plain", "token")))
	leave(at("mounted", "..2", "metrics"), "metrics-"+token+"-2")
	require.NoError(t, os.Symlink("..2", at("mounted", "..next")))
	require.NoError(t, os.Rename(at("mounted", "..next"), at("mounted", "..data")))
	require.NoError(t, os.RemoveAll(at("mounted", "..1")))
	leave(at("else", "key.new"), "key-"+token+"-2")
	require.NoError(t, os.Rename(at("else", "key.new"), at("else", "key")))
	look("slot_0")
	_, err = a.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	look("slot_0")
	look("slot_1")
}
