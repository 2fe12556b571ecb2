// Command orchestrator keeps a pool of containers and leases their slots to
// trajectories.
package main

import (
	"context"
	"os"
	"runtime"
	"syscall"

	"berth/orchestrator/strip"
	"berth/slots/timerslack"
)

// version is set by the linker.
var version = "dev"

func main() {
	if len(os.Args) == 3 && os.Args[1] == strip.Role {
		os.Exit(strip.Main(os.Args[2])) // a process of the server's, of which nothing is started
	}
	if withCommand(os.Args[1:])[0] == "serve" {
		// Slots of containers on this machine pass through the data directory: a
		// stricter umask would cost them that.
		syscall.Umask(0o022)
		timerslack.RestWatcher()
		halveParallelism()
	}
	os.Exit(Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// halveParallelism has the server use half of the processors, unless GOMAXPROCS
// says otherwise. A call is passed on in a straight line: a second processor
// that is woken to look for work finds none, and is taken from the containers.
func halveParallelism() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
}
