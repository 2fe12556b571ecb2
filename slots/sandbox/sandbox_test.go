package sandbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
	"berth/slots/sandbox/sandboxtest"
)

func openHost(t testing.TB, change func(*sandbox.Config)) *sandbox.Host {
	t.Helper()
	c := sandbox.Config{DataDir: sandboxtest.DataDir(t), Exe: sandboxtest.Agent(t), Slots: 2, Network: true, Attempt: slots.LevelNSCgroup}
	if change != nil {
		change(&c)
	}
	h, err := sandbox.Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, h.Close()) })
	return h
}

func bash(t testing.TB, s *sandbox.Sandbox, command string) (stdout, stderr string, exit slots.Exit) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Second, sandbox.ErrTimedOut)
	defer cancel()
	exit, err := s.Run(ctx, sandbox.Command{Argv: []string{"bash", "-c", command}, Stdout: &out, Stderr: &errs})
	require.NoError(t, err)
	return out.String(), errs.String(), exit
}

func TestASandboxRunsCommandsAtTheBestLevel(t *testing.T) {
	h := openHost(t, nil)
	text, _ := json.MarshalIndent(h.Report(), "", " ")
	t.Logf("%s", text)
	s, err := h.NewSandbox(t.Context(), "slot_0", 0)
	require.NoError(t, err)
	defer s.Close()
	for _, c := range []string{"true", "id; pwd; ls -la / /workspace /tmp /dev /run /run/berth; cat /proc/self/status | grep -E 'Cap|Seccomp|NoNew|Groups'; env; ps aux; cat /proc/self/mountinfo; ls -la /proc/self/fd; ulimit -a", "exit 3", "kill -9 $$"} {
		out, errs, exit := bash(t, s, c)
		t.Logf("%s\n%s%s%+v", c, out, errs, exit)
	}
	r, err := s.Reset(t.Context())
	require.NoError(t, err)
	t.Logf("%+v", r)
	assert.True(t, r.Clean)
}
