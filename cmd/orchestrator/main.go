// Command orchestrator keeps a pool of containers and leases their slots to
// trajectories.
package main

import (
	"context"
	"os"
)

// version is set by the linker.
var version = "dev"

func main() {
	os.Exit(Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
