package need

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
)

// slotPath is where slots look for programs: not on the developer's own PATH.
const slotPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// programs are what slots run tools with: the facility, how a shell finds it,
// and the packages of Debian that have it.
var programs = map[string]struct{ script, packages string }{
	"python3": {"command -v python3", "python3"},
	"pip":     {`command -v python3 && { command -v uv || python3 -I -c "import venv, pip"; }`, "python3-venv python3-pip"},
	"node":    {"command -v node", "nodejs"},
	"npm":     {"command -v node && command -v npm", "nodejs npm"},
}

// Program skips t where slots find no program of the name: python3, pip for
// what installs Python packages, node, npm. Like Facility it fails t when
// BERTH_REQUIRE names it.
func Program(t testing.TB, name string) {
	t.Helper()
	Facility(t, name, lacking(t.Context(), slotPath, name))
}

// lacking says what there is to install, when nothing on the path is it.
func lacking(ctx context.Context, path, name string) error {
	p, ok := programs[name]
	if !ok {
		return fmt.Errorf("nobody knows how to look for %s", name)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", p.script) //nolint:gosec // the scripts above
	cmd.Env = []string{"PATH=" + path}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("slots find no %s (apt-get install %s): %w: %.500s", name, p.packages, err, out)
	}
	return nil
}
