package tool

import (
	"context"
	"encoding/base64"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
)

func nothingInShell(context.Context, sandbox.ShellCommand) (slots.Exit, sandbox.ShellState, error) {
	return slots.Exit{Outcome: slots.OutcomeExited}, sandbox.ShellState{}, nil
}

func TestBashAnswersInTheWordsOfTheReference(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name           string
		stdout, stderr string
		code           int
		output, err    string
	}{
		{"success", "hello\n", "", 0, "hello", ""},
		{"indentation stays", "  a\n b\n\n", "", 0, "  a\n b", ""},
		{"both streams", "out\n", "err\n", 0, "out\n[stderr]\nerr", ""},
		{"stderr alone", "", "err\n", 0, "\n[stderr]\nerr", ""},
		{"failure", "out", "", 3, "out", "Exit code: 3"},
		{"nothing", "", "", 1, "", "Exit code: 1"},
		{"carriage returns", "a\r\nb\r\n", "", 0, "a\r\nb\r", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &fakeSlot{run: prints(c.stdout, c.stderr, c.code)}
			r := bash{}.Run(t.Context(), s, newCall(t, object{"command": "x"}))
			assert.Equal(t, c.code == 0, r.Success)
			assert.Equal(t, c.output, r.Output)
			assert.Equal(t, c.err, r.Error)
			assert.Equal(t, c.code, r.Metadata.ExitCode)
			assert.Equal(t, slots.OutcomeExited, r.Metadata.Outcome)
			assert.Empty(t, r.Metadata.ErrorKind)
			assert.EqualValues(t, len(c.stdout), r.Metadata.StdoutBytes)
			assert.EqualValues(t, len(c.stderr), r.Metadata.StderrBytes)
			assert.InDelta(t, 3, r.Metadata.DurationMS, 1e-9)
			assert.Equal(t, "bash", r.Metadata.Details["shell"])
		})
	}
}

func TestBashReportsEveryEndingOfAProcess(t *testing.T) {
	t.Parallel()
	cases := []struct {
		exit slots.Exit
		err  string
	}{
		{slots.Exit{Outcome: slots.OutcomeSignaled, Code: 137, Signal: "SIGKILL"}, "Exit code: 137"},
		{slots.Exit{Outcome: slots.OutcomeOOMKilled, Code: 137, OOMKilled: true}, "Exit code: 137"},
		{slots.Exit{Outcome: slots.OutcomeOutputLimited, Code: 137}, "Command wrote more output than allowed"},
		{slots.Exit{Outcome: slots.OutcomeDiskLimited, Code: 137}, "Command used more disk than allowed"},
		{slots.Exit{Outcome: slots.OutcomeCancelled, Code: 137}, "Command was cancelled"},
	}
	for _, c := range cases {
		t.Run(string(c.exit.Outcome), func(t *testing.T) {
			t.Parallel()
			s := &fakeSlot{run: func(context.Context, sandbox.Command) (slots.Exit, error) { return c.exit, nil }}
			r := bash{}.Run(t.Context(), s, newCall(t, object{"command": "x"}))
			assert.False(t, r.Success)
			assert.Equal(t, c.err, r.Error)
			assert.Equal(t, c.exit.Outcome, r.Metadata.Outcome)
			assert.Equal(t, c.exit.OOMKilled, r.Metadata.OOMKilled)
			assert.Empty(t, r.Metadata.ErrorKind, "what a command did is no fault of ours")
		})
	}
}

func TestATimeoutKeepsTheOutputAndPrintsTheNumberAsSent(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		"30": "30", "0.5": "0.5", "30.0": "30.0", "3e1": "30.0", "null": "30", "1e-7": "1e-07", "0.25": "0.25", "1.50": "1.5",
	} {
		s := &fakeSlot{run: func(_ context.Context, c sandbox.Command) (slots.Exit, error) {
			_, _ = io.WriteString(c.Stdout, "partial\n")
			return slots.Exit{Outcome: slots.OutcomeTimedOut, Code: 137}, nil
		}}
		c := newCall(t, object{"command": "sleep 99"})
		c.Timeout = timeout(t, sent)
		r := bash{}.Run(t.Context(), s, c)
		assert.Equal(t, "Command timed out after "+want+"s", r.Error, sent)
		assert.Equal(t, "partial", r.Output)
		assert.Equal(t, -1, r.Metadata.ExitCode)
		assert.Equal(t, true, r.Metadata.Details["timeout"])
		assert.Empty(t, r.Metadata.ErrorKind)
	}
}

func TestTheDefaultTimeoutIsPrintedAsAWholeNumberWhereItIsOne(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "30", seconds(api.Timeout{}, 30*time.Second))
	assert.Equal(t, "1.5", seconds(api.Timeout{}, 1500*time.Millisecond))
}

func TestACallThatTheKeeperEndsSaysWhy(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &fakeSlot{run: func(context.Context, sandbox.Command) (slots.Exit, error) {
		cancel(slots.Errorf(slots.KindInterrupted, "slot slot_0 was reset"))
		return slots.Exit{Outcome: slots.OutcomeCancelled, Code: 137}, nil
	}}
	r := bash{}.Run(ctx, s, newCall(t, object{"command": "x"}))
	assert.Equal(t, slots.OutcomeCancelled, r.Metadata.Outcome)
	assert.Equal(t, slots.KindInterrupted, r.Metadata.ErrorKind)
	assert.Equal(t, slots.ExecutedYes, r.Metadata.Executed, "its process ran")
	assert.Equal(t, "slot slot_0 was reset", r.Error)
}

func TestALostSlotIsToldApartFromAFailedCommand(t *testing.T) {
	t.Parallel()
	lost := func(context.Context, sandbox.Command) (slots.Exit, error) {
		return slots.Exit{}, slots.Errorf(slots.KindSlotLost, "holder died")
	}
	r := bash{}.Run(t.Context(), &fakeSlot{run: lost}, newCall(t, object{"command": "x"}))
	assert.Equal(t, slots.KindSlotLost, r.Metadata.ErrorKind)
	assert.Nil(t, r.Metadata.Receipt)

	ctx, cancel := context.WithTimeoutCause(t.Context(), 0, sandbox.ErrTimedOut)
	defer cancel()
	r = bash{}.Run(ctx, &fakeSlot{run: lost}, newCall(t, object{"command": "x"}))
	assert.Equal(t, slots.KindSlotLost, r.Metadata.ErrorKind, "also when it is late")
}

func TestWithoutBashTheCommandRunsInSh(t *testing.T) {
	t.Parallel()
	s := &fakeSlot{run: func(_ context.Context, c sandbox.Command) (slots.Exit, error) {
		if c.Argv[0] == "bash" {
			return slots.Exit{}, slots.Errorf(slots.KindNotFound, "bash: not found")
		}
		_, _ = io.WriteString(c.Stdout, "ok")
		return slots.Exit{Outcome: slots.OutcomeExited}, nil
	}}
	r := bash{}.Run(t.Context(), s, newCall(t, object{"command": "echo ok"}))
	assert.True(t, r.Success)
	assert.Equal(t, "sh", r.Metadata.Details["shell"])
	assert.Equal(t, []string{"sh", "-c", "echo ok"}, s.commands[1].Argv)
}

func TestALongCommandTravelsOnAFile(t *testing.T) {
	t.Parallel()
	short, long := strings.Repeat("x", maxInline), strings.Repeat("x\r\n", 20<<20)
	s := &fakeSlot{}
	bash{}.Run(t.Context(), s, newCall(t, object{"command": short}))
	bash{}.Run(t.Context(), s, newCall(t, object{"command": long}))
	assert.Equal(t, []string{"bash", "-c", short}, s.commands[0].Argv)
	assert.Nil(t, s.commands[0].Script)
	assert.Equal(t, []string{"bash"}, s.commands[1].Argv)
	same := long == string(s.commands[1].Script) // an assert.Equal would print 60 MB
	assert.True(t, same, "the script must be the command, byte by byte")
}

func TestAWindowSmallerThanTheOutputKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	s := &fakeSlot{run: prints(strings.Repeat("a", 100)+strings.Repeat("z", 100), "", 0)}
	r := bash{}.Run(t.Context(), s, newCall(t, object{"command": "x", "max_output": 20}))
	assert.Equal(t, "aaaaaaaaaa\n[... 180 bytes omitted ...]\nzzzzzzzzzz", r.Output)
	assert.True(t, r.Metadata.Truncated)
	assert.EqualValues(t, 200, r.Metadata.StdoutBytes)
}

func TestF19_OutputThatIsNotUTF8IsMarkedAndAvailableWithoutLoss(t *testing.T) {
	t.Parallel()
	raw := "\x00\xff\x1b[31mred"
	s := &fakeSlot{run: prints(raw, "e", 0)}
	r := bash{}.Run(t.Context(), s, newCall(t, object{"command": "x", "encoding": "base64"}))
	assert.Equal(t, "\x00\uFFFD\x1b[31mred\n[stderr]\ne", r.Output)
	assert.Equal(t, true, r.Metadata.Details["replaced"])
	assert.Equal(t, base64.StdEncoding.EncodeToString([]byte(raw)), r.Metadata.Details["stdout_base64"])
	assert.Equal(t, "ZQ==", r.Metadata.Details["stderr_base64"])
}

func TestSeparateStreamsStandInTheMetadata(t *testing.T) {
	t.Parallel()
	s := &fakeSlot{run: prints("o\n", "e\n", 0)}
	r := bash{}.Run(t.Context(), s, newCall(t, object{"command": "x", "separate": true}))
	assert.Equal(t, "o", r.Metadata.Details["stdout"])
	assert.Equal(t, "e", r.Metadata.Details["stderr"])
	r = bash{}.Run(t.Context(), s, newCall(t, object{"command": "x"}))
	assert.NotContains(t, r.Metadata.Details, "stdout")
}

func TestTheCommandGetsItsStdinCwdAndSwitches(t *testing.T) {
	t.Parallel()
	var stdin []byte
	s := &fakeSlot{run: func(_ context.Context, c sandbox.Command) (slots.Exit, error) {
		var err error
		stdin, err = io.ReadAll(c.Stdin)
		return slots.Exit{Outcome: slots.OutcomeExited}, err
	}}
	bash{}.Run(t.Context(), s, newCall(t, object{
		"command": "cat", "stdin": "a\x00b", "cwd": "sub dir", "background": true, "allow_network": false,
	}))
	assert.Equal(t, "a\x00b", string(stdin))
	assert.Equal(t, "sub dir", s.commands[0].Cwd)
	assert.True(t, s.commands[0].Background)
	assert.True(t, s.commands[0].NoNetwork)
}

func TestTheIsolationIsReportedAsItIs(t *testing.T) {
	t.Parallel()
	landlock := slots.NewIsolation(slots.Axes{
		slots.AxisFS: "landlock", slots.AxisAgent: "signals-only", slots.AxisKill: "walk", slots.AxisPids: "rlimit",
		slots.AxisSyscalls: "denylist", slots.AxisNet: "loopback-only",
	})
	require.False(t, landlock.Unsafe)
	c := newCall(t, object{"command": "x", "require_sandbox": true})
	r := bash{}.Run(t.Context(), &fakeSlot{}, c)
	assert.Equal(t, slots.KindUnavailable, r.Metadata.ErrorKind)
	assert.Equal(t, "Sandbox required, but the isolation level is none", r.Error)

	c = newCall(t, object{"command": "x", "require_sandbox": true})
	c.Isolation = landlock
	r = bash{}.Run(t.Context(), &fakeSlot{}, c)
	require.True(t, r.Success)
	assert.Equal(t, true, r.Metadata.Details["sandboxed"])
	assert.Equal(t, true, r.Metadata.Details["network_isolated"])

	r = bash{}.Run(t.Context(), &fakeSlot{}, newCall(t, object{"command": "x"}))
	assert.Equal(t, false, r.Metadata.Details["sandboxed"])
	assert.Equal(t, false, r.Metadata.Details["network_isolated"])
}

func TestTheStatefulShellSaysWhenItIsANewOne(t *testing.T) {
	t.Parallel()
	var got []sandbox.ShellCommand
	state := sandbox.ShellState{}
	s := &fakeSlot{shell: func(_ context.Context, c sandbox.ShellCommand) (slots.Exit, sandbox.ShellState, error) {
		got = append(got, c)
		_, _ = io.WriteString(c.Stdout, "out")
		return slots.Exit{Outcome: slots.OutcomeExited, Code: 2}, state, nil
	}}
	r := bashStateful{}.Run(t.Context(), s, newCall(t, object{"command": "false"}))
	assert.Equal(t, "out", r.Output)
	assert.Equal(t, "Exit code: 2", r.Error)
	assert.Equal(t, true, r.Metadata.Details["stateful"])
	assert.NotContains(t, r.Metadata.Details, "restarted")

	state = sandbox.ShellState{Restarted: true, Note: "the shell has exited"}
	r = bashStateful{}.Run(t.Context(), s, newCall(t, object{"restart": true}))
	assert.True(t, got[1].Restart)
	assert.Empty(t, got[1].Command)
	assert.Equal(t, true, r.Metadata.Details["restarted"])
	assert.Equal(t, "the shell has exited", r.Metadata.Details["note"])
}

func TestAShellThatIsLostIsStillMarkedAsStateful(t *testing.T) {
	t.Parallel()
	s := &fakeSlot{shell: func(context.Context, sandbox.ShellCommand) (slots.Exit, sandbox.ShellState, error) {
		return slots.Exit{}, sandbox.ShellState{Restarted: true}, slots.Errorf(slots.KindSlotLost, "holder died")
	}}
	r := bashStateful{}.Run(t.Context(), s, newCall(t, object{"command": "x"}))
	assert.Equal(t, slots.KindSlotLost, r.Metadata.ErrorKind)
	assert.Equal(t, true, r.Metadata.Details["restarted"])
}
