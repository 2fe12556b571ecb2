// Package need decides what a test does when the machine lacks something:
// it skips with the probe's reason, or fails when BERTH_REQUIRE names it.
package need

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Facility skips t with the reason when err is not nil, and fails it when
// name stands in the comma-separated BERTH_REQUIRE. What skips tells the name:
// root, user, userns, cgroup, docker, nomad and so on, and those of Program.
func Facility(t testing.TB, name string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("BERTH_REQUIRE"), ","), name) {
		t.Fatalf("BERTH_REQUIRE names %s, but this machine lacks it: %v", name, err)
	}
	t.Skipf("needs %s: %v", name, err)
}
