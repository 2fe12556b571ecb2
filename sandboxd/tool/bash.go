package tool

import (
	"context"
	"errors"
	"strings"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
)

// maxInline is the longest command that is handed over as an argument. The
// kernel takes 128 KiB in one; a longer command travels on a file.
const maxInline = 100 << 10 // bytes

// bash runs a command in a new shell.
//
//	command          required; no NUL byte, any length, line ends as they are
//	allow_network    default true; false gives loopback only, or is refused
//	require_sandbox  default false; true is refused where slots can read each other
//	env              object of strings, on top of the slot's environment
//	cwd              default the workspace
//	stdin            default empty
//	max_output       characters kept of each stream; default 50000
//	separate         adds metadata.stdout and metadata.stderr
//	background       processes that outlive the command stay until reset
//	encoding         "base64" adds metadata.stdout_base64 and stderr_base64
type bash struct{}

// Name is "bash".
func (bash) Name() string { return "bash" }

// Run runs the command, with sh where the slot has no bash.
func (bash) Run(ctx context.Context, s Slot, c Call) api.Result {
	a := parseArgs(c.Args)
	command := a.need("command")
	network := a.flag("allow_network", true)
	require := a.flag("require_sandbox", false)
	cmd := sandbox.Command{
		Env: a.environment("env"), Cwd: a.text("cwd"), Stdout: c.Stdout, Stderr: c.Stderr,
		NoNetwork: !network, Background: a.flag("background", false), Live: c.Live,
	}
	if len(cmd.Cwd) > maxCwd {
		a.refuse("cwd", "is %d bytes long (max %d)", len(cmd.Cwd), maxCwd)
	}
	if stdin, ok := a.input("stdin"); ok {
		cmd.Stdin = strings.NewReader(stdin)
	}
	separate, encoding := a.flag("separate", false), a.word("encoding", "text", "base64")
	a.maxOutput()
	if a.err != nil {
		return refused(a.err)
	}
	if require && c.Isolation.Unsafe {
		return refused(slots.Errorf(slots.KindUnavailable, "Sandbox required, but the isolation level is %s", c.Isolation.Level))
	}
	shell := "bash"
	exit, err := s.Run(ctx, withShell(cmd, shell, command))
	if e, ok := errors.AsType[*slots.Error](err); ok && e.Kind == slots.KindNotFound {
		// Nothing has run: the image has no bash.
		shell = "sh"
		exit, err = s.Run(ctx, withShell(cmd, shell, command))
	}
	if err != nil {
		return c.failed(ctx, err)
	}
	r := c.process(ctx, exit)
	c.split(&r, separate, encoding == "base64")
	r.Metadata.Details["shell"] = shell
	r.Metadata.Details["sandboxed"] = !c.Isolation.Unsafe
	r.Metadata.Details["network_isolated"] = !network || offline(c.Isolation)
	return r
}

func withShell(cmd sandbox.Command, shell, command string) sandbox.Command {
	if len(command) > maxInline {
		cmd.Argv, cmd.Script = []string{shell}, []byte(command)
		return cmd
	}
	cmd.Argv = []string{shell, "-c", command}
	return cmd
}

// offline reports whether no slot has more network than its own loopback.
func offline(i slots.Isolation) bool { return i.Axes[slots.AxisNet] == "loopback-only" }
