package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
)

func TestLevels(t *testing.T) {
	for _, l := range slots.Levels() {
		t.Run(l.String(), func(t *testing.T) {
			h := openHost(t, func(c *sandbox.Config) { c.Attempt = l; c.NoCgroup = l < slots.LevelNSCgroup })
			t.Log(h.Isolation(), h.Report().Mechanism)
			for _, a := range h.Report().Attempts {
				t.Logf("%+v", a)
			}
			s, err := h.NewSandbox(t.Context(), "slot_0", 0)
			require.NoError(t, err)
			defer s.Close()
			out, errs, exit := bash(t, s, "id -u; pwd; echo hi > x; cat x; ls /proc/self/fd | tr '\\n' ' '")
			t.Log(out, errs, exit)
			assert.Equal(t, 0, exit.Code)
			began := time.Now()
			out, errs, exit = bash(t, s, "sleep 100 & (setsid sleep 101 &) ; echo done")
			t.Log(out, errs, exit, time.Since(began))
			ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, sandbox.ErrTimedOut)
			var b bytes.Buffer
			began = time.Now()
			exit, err = s.Run(ctx, sandbox.Command{Argv: []string{"bash", "-c", "echo part; trap '' TERM; (setsid sleep 77 &); sleep 99"}, Stdout: &b})
			cancel()
			t.Log(b.String(), exit, err, time.Since(began))
			for _, c := range []string{"x=5; f() { echo f$x; }; cd /tmp", "f; pwd", "sleep 500 & echo $?", "jobs -r | wc -l", "(", "exit 4", "f; pwd", "cat <<EOF\nhi\nEOF\n# c", "false", "echo $?", "while :; do :; done", "echo again $x"} {
				var out, errs bytes.Buffer
				ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, sandbox.ErrTimedOut)
				began = time.Now()
				exit, state, err := s.Shell(ctx, sandbox.ShellCommand{Command: c, Stdout: &out, Stderr: &errs})
				cancel()
				t.Logf("%q -> %q %q %+v %+v %v %v", c, out.String(), errs.String(), exit, state, err, time.Since(began))
			}
			r, err := s.Reset(t.Context())
			require.NoError(t, err)
			assert.True(t, r.Clean)
			t.Logf("%+v", r)
			var a, f []time.Duration
			for range 100 {
				b0 := time.Now()
				exec.Command("bash", "-c", "true").Run()
				f = append(f, time.Since(b0))
				b0 = time.Now()
				s.Run(t.Context(), sandbox.Command{Argv: []string{"bash", "-c", "true"}})
				a = append(a, time.Since(b0))
			}
			slices.Sort(a)
			slices.Sort(f)
			fmt.Println(l, "slot", a[50], "floor", f[50], float64(a[50])/float64(f[50]))
		})
	}
}
