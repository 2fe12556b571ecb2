package environment_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/environment"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox"
)

func TestAnUnknownPackageOrVersionIsNamed(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.wheel(t, "small", "1.0", "value = 1\n")
	f := p.refused(t, p.python("small", "Nothing.Such 2.0"))
	assert.Equal(t, api.InstallNotFound, f.Reason)
	assert.Equal(t, "nothing-such==2.0", f.Requirement)
	assert.Equal(t, "no package fits nothing-such==2.0", f.Message)
	assert.Contains(t, f.Output, "nothing-such", "the tool's own words are there")
	f = p.refused(t, p.python("small >=2,<3"))
	assert.Equal(t, api.InstallNotFound, f.Reason)
	assert.Equal(t, "small>=2,<3", f.Requirement)
	p.wheel(t, "needy", "1.0", "", "absent-dependency")
	f = p.refused(t, p.python("needy"))
	assert.Equal(t, api.InstallNotFound, f.Reason)
	assert.Equal(t, "absent-dependency", f.Requirement, "one that another needs")
	assert.Equal(t, []string{"python not_found", "python not_found", "python not_found"}, p.seen.built())
	assert.False(t, p.ensure(t, p.python("small")).Cached, "a failure is not kept")
}

func TestVersionsThatExcludeEachOtherAreAConflict(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.wheel(t, "base", "1.0", "")
	p.wheel(t, "base", "2.0", "")
	p.wheel(t, "left", "1.0", "", "base==1.0")
	p.wheel(t, "right", "1.0", "", "base==2.0")
	f := p.refused(t, p.python("left", "right"))
	assert.Equal(t, api.InstallConflict, f.Reason)
	assert.Empty(t, f.Requirement, "it is not one alone")
	assert.Contains(t, f.Message, "left")
	assert.Contains(t, f.Message, "right")
}

func TestAnIndexThatDoesNotAnswerIsNotTheRequirementsFault(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	s := p.python("small")
	s.Index = api.Index{IndexURL: "http://user:s3cret-word@127.0.0.1:9/simple"}
	f := p.refused(t, s)
	assert.Equal(t, api.InstallUnreachable, f.Reason)
	assert.NotContains(t, f.Output+f.Message, "s3cret-word")
	_, err := os.Stat(p.config.StateDir)
	require.NoError(t, err)
}

func TestAPackageWhoseBuildFailsIsNamed(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.sdist(t, "broken", "1.0", "def hostile_build(): raise SystemExit('compiler is missing')\n")
	f := p.refused(t, p.python("broken"))
	assert.Equal(t, api.InstallBuild, f.Reason)
	assert.Equal(t, "broken", f.Requirement)
	assert.Contains(t, f.Output, "compiler is missing")
}

func TestABuildThatTakesTooLongIsEndedWithAllItsProcesses(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, func(c *environment.Config) { c.Timeout = 15 * time.Second })
	mark := "86400." + strings.ReplaceAll(time.Now().Format("05.000000000"), ".", "")
	p.sdist(t, "endless", "1.0", `
import subprocess, time
def hostile_build():
    subprocess.Popen(["setsid", "sleep", "`+mark+`"])
    time.sleep(100000)
`)
	f := p.refused(t, p.python("endless"))
	assert.Equal(t, api.InstallTimeout, f.Reason)
	assert.Contains(t, f.Message, "endless")
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		text, _ := os.ReadFile(name)
		assert.NotContains(t, string(text), mark)
	}
}

func TestABuildThatTakesTooMuchSpaceIsEnded(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, func(c *environment.Config) { c.MaxBytes = 60 << 20 })
	p.sdist(t, "huge", "1.0", `
import os, time
def hostile_build():
    with open(os.path.join(os.environ["TMPDIR"], "big"), "wb") as f:
        for _ in range(200): f.write(b"x" * (1 << 20))
        f.flush()
        time.sleep(100000)
`)
	f := p.refused(t, p.python("huge"))
	assert.Equal(t, api.InstallDiskFull, f.Reason)
	assert.Contains(t, f.Message, "more room than there is")
}

func TestASlotsDiskLimitHoldsWhatABuildLeavesElsewhere(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil, func(c *sandbox.Config) { c.Disk, c.Limits.DiskBytes = sandbox.DiskWatcher, 20<<20 })
	p.sdist(t, "huge", "1.0", `
import time
def hostile_build():
    with open("/tmp/big", "wb") as f:
        for _ in range(100): f.write(b"x" * (1 << 20))
        f.flush()
        time.sleep(100000)
`)
	f := p.refused(t, p.python("huge"))
	assert.Equal(t, api.InstallDiskFull, f.Reason)
}

func TestAVersionOfTheInterpreterThatIsNotThereIsSaid(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.wheel(t, "small", "1.0", "value = 1\n")
	s := p.python("small")
	s.Version = "3.99"
	f := p.refused(t, s)
	assert.Equal(t, api.InstallInterpreter, f.Reason)
	assert.Contains(t, f.Message, "no Python 3.99, only 3.")
	s.Version = "3"
	assert.NotEmpty(t, p.ensure(t, s).Environment.Interpreter)
}

func TestHostileNamesNeverReachABuild(t *testing.T) {
	t.Parallel()
	p := newPlace(t, strongest, nil)
	for _, name := range []string{"--index-url=x", "../x", "a;b", "a\nb", "-r/etc/passwd", "git+https://x/y"} {
		for _, language := range []string{api.LanguagePython, api.LanguageNode} {
			_, err := p.store.Ensure(t.Context(), p.spec(language, name), false, nil)
			assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%q", name)
		}
	}
	assert.Empty(t, p.seen.built())
}

// attack is what a hostile package tries while it is installed. It writes down
// what it could do, and then installs well.
const attack = `
import glob, os
root, workspace, data = %q, %q, %q
def hostile_build():
    done = []
    def attempt(name, f):
        try:
            f(); done.append(name)
        except Exception as e:
            print(name, type(e).__name__)
    def write(path):
        with open(path, "w") as f: f.write("evil")
    for tree in glob.glob(root + "/*/lib/python3*/site-packages/small.py") + [root + "/" + k + "/small.py" for k in os.environ.get("NONE", "").split()]:
        attempt("environment", lambda: write(tree))
    for key in %q.split():
        attempt("environment " + key, lambda: write(root + "/" + key + "/bin/evil"))
        attempt("remove", lambda: os.rename(root + "/" + key + "/bin", root + "/" + key + "/bin2"))
    attempt("workspace", lambda: write(workspace + "/evil"))
    attempt("workspace read", lambda: open(workspace + "/mine").read())
    attempt("agent", lambda: write(data + "/evil"))
    attempt("agent records", lambda: os.listdir(data + "/environments"))
    attempt("packages", lambda: write(os.path.join(%q, "evil.whl")))
    attempt("system", lambda: write("/usr/lib/evil.py"))
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try: environ = open("/proc/" + pid + "/environ").read()
            except OSError: continue
            if "BERTH_TEST_SECRET_OF_AGENT" in environ: done.append("environ of " + pid)
    if done: raise SystemExit("OPEN " + " ".join(done))
`

func TestAHostilePackageReachesNothingWhileItIsInstalled(t *testing.T) {
	need.Program(t, "pip")
	t.Setenv("BERTH_TEST_SECRET_OF_AGENT", "1")
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			p := newPlace(t, level, nil)
			p.wheel(t, "small", "1.0", "value = 'good'\n")
			e := p.ensure(t, p.python("small")).Environment
			_, code := p.inSlot(t, "sh", "-c", "echo mine > mine")
			require.Equal(t, 0, code)
			workspace, err := filepath.EvalSymlinks(p.slot.Workspace())
			require.NoError(t, err)
			p.sdist(t, "evil", "1.0", fmt.Sprintf(attack, p.store.Root(), workspace, p.data, e.Key, p.packages))
			r := p.ensure(t, p.python("evil"))
			assert.NotNil(t, r.Environment, "it reached nothing, so it was installed")
			out, _ := p.inSlot(t, e.Path+"/bin/python3", "-c", "import small; print(small.value)")
			assert.Equal(t, "good\n", out)
			p.nothingLeft(t)
		})
	}
}

func TestLinksInAPackageLeadNowhereThatASlotCannotGo(t *testing.T) {
	need.Program(t, "pip")
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, level, nil)
			secret := filepath.Join(p.data, "secret")
			require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
			p.sdist(t, "linked", "1.0", `
import os
def hostile_build():
    top = os.environ["PWD_OF_TREE"] if "PWD_OF_TREE" in os.environ else os.path.dirname(os.path.dirname(os.environ["HOME"]))
    os.symlink("`+secret+`", top + "/secret")
    os.symlink("`+p.data+`", top + "/data")
    os.symlink("/etc/passwd", top + "/passwd")
    os.mkfifo(top + "/pipe")
    os.link(top + "/pyvenv.cfg", top + "/twice")
`)
			before, err := os.Stat(secret)
			require.NoError(t, err)
			etc, err := os.Stat("/etc/passwd")
			require.NoError(t, err)
			e := p.ensure(t, p.python("linked")).Environment
			after, err := os.Stat(secret)
			require.NoError(t, err)
			assert.Equal(t, before, after, "sealing follows no link")
			etcAfter, err := os.Stat("/etc/passwd")
			require.NoError(t, err)
			assert.Equal(t, etc.Mode(), etcAfter.Mode())
			for _, read := range []string{"cat " + e.Path + "/secret", "ls " + e.Path + "/data/", "ls " + e.Path + "/pipe"} {
				out, code := p.inSlot(t, "sh", "-c", read)
				assert.NotEqual(t, 0, code, "%s: %s", read, out)
			}
			require.NoError(t, p.store.Delete(e.Key))
			p.nothingLeft(t)
			_, err = os.Stat(secret)
			require.NoError(t, err, "deleting follows no link")
		})
	}
}
