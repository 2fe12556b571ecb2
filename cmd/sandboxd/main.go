// Command sandboxd serves the slots of one container. The same binary is, by
// its first argument, also what runs inside: the spawner, the holders and
// their trampolines.
package main

import (
	"context"
	"os"
	"strings"
	"syscall"

	"berth/slots/holder"
	"berth/slots/probe"
	"berth/slots/sandbox"
	"berth/slots/timerslack"
)

// version is set by the linker.
var version = "dev"

func main() {
	// Directories have the modes that they are made with: slots with users of
	// their own pass through some, and a stricter umask would cost them that.
	syscall.Umask(0o022)
	if len(os.Args) > 1 {
		// The inner roles come first and touch nothing of the agent's: they
		// start often and must stay small.
		switch os.Args[1] {
		case "holder":
			os.Exit(holder.Main())
		case "serve-slot":
			os.Exit(holder.ServeMain(strings.Join(os.Args[2:], " ")))
		case "spawner":
			os.Exit(holder.SpawnerMain())
		case "confine":
			os.Exit(holder.ConfineMain(os.Args[2:], os.Stderr))
		case "kill-all":
			os.Exit(holder.KillAllMain())
		case "cgroup-delegate":
			os.Exit(sandbox.DelegateMain())
		case "attack":
			os.Exit(probe.AttackMain(os.Stdin, os.Stdout))
		}
	}
	if withCommand(os.Args[1:])[0] == "serve" {
		timerslack.RestWatcher()
	}
	os.Exit(Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
