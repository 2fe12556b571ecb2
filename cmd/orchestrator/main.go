// Command orchestrator keeps a pool of containers and leases their slots to
// trajectories.
package main

import (
	"context"
	"os"
	"runtime"

	"berth/slots/timerslack"
)

// version is set by the linker.
var version = "dev"

func main() {
	if withCommand(os.Args[1:])[0] == "serve" {
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
