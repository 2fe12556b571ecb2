package environment_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/environment"
	"berth/slots"
	"berth/slots/sandbox"
	"berth/slots/sandbox/sandboxtest"
)

// patience is how long a build may take on a machine that has much to do.
const patience = 2 * time.Minute

// place is a container with environments and one slot.
type place struct {
	host     *sandbox.Host
	store    *environment.Store
	slot     *sandbox.Sandbox
	packages string // what builds may install from
	data     string
	config   environment.Config
	seen     *observed
}

type observed struct {
	mu       sync.Mutex
	outcomes []string
	evicted  int
}

func (o *observed) EnvironmentBuilt(language, outcome string, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcomes = append(o.outcomes, language+" "+outcome)
}

func (o *observed) EnvironmentEvicted() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.evicted++
}

func (o *observed) built() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.outcomes...)
}

var hosts atomic.Int32

// newPlace opens one at a level, which the machine must give.
func newPlace(t testing.TB, level slots.Level, change func(*environment.Config), changeHost ...func(*sandbox.Config)) *place {
	t.Helper()
	p := &place{packages: sandboxtest.DataDir(t), data: sandboxtest.DataDir(t), seen: &observed{}}
	require.NoError(t, os.Chmod(p.packages, 0o755))
	c := sandbox.Config{
		DataDir: filepath.Join(p.data, "sandboxes"), Exe: sandboxtest.Agent(t), Slots: 1, Network: true, Attempt: level, NoCgroup: true,
		FirstUID: 1_200_000 + os.Getpid()%10_000*5000 + int(hosts.Add(1))%50*100,
	}
	for _, f := range changeHost {
		f(&c)
	}
	var err error
	p.host, err = sandbox.Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.host.Close()) })
	if got := p.host.Isolation().Level; got != level {
		t.Skipf("this machine gives %s", got)
	}
	p.slot, err = p.host.NewSandbox(context.Background(), "slot_0", 0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.slot.Close()) })
	p.config = environment.Config{StateDir: filepath.Join(p.data, "environments"), Packages: []string{p.packages}, Timeout: patience}
	if change != nil {
		change(&p.config)
	}
	p.open(t)
	return p
}

// open opens the store, as an agent that starts does.
func (p *place) open(t testing.TB) {
	t.Helper()
	var err error
	p.store, err = environment.Open(environment.Deps{Site: p.host.Environments(), Observer: p.seen}, p.config)
	require.NoError(t, err)
	store := p.store
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
}

// inSlot runs a command in the slot.
func (p *place) inSlot(t testing.TB, argv ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	exit, err := p.slot.Run(t.Context(), sandbox.Command{Argv: argv, Stdout: &out, Stderr: &out})
	require.NoError(t, err)
	return out.String(), exit.Code
}

// python is a spec that is installed from the place's packages alone.
func (p *place) python(requirements ...string) api.EnvironmentSpec {
	return p.spec(api.LanguagePython, requirements...)
}

func (p *place) node(requirements ...string) api.EnvironmentSpec {
	return p.spec(api.LanguageNode, requirements...)
}

func (p *place) spec(language string, requirements ...string) api.EnvironmentSpec {
	s := api.EnvironmentSpec{Language: language, Index: api.Index{FindLinks: []string{p.packages}, NoIndex: true}}
	for _, r := range requirements {
		name, version, _ := strings.Cut(r, " ")
		s.Requirements = append(s.Requirements, api.Requirement{Name: name, Version: version})
	}
	return s
}

func keyOf(t testing.TB, s api.EnvironmentSpec) string {
	t.Helper()
	key, err := s.Key()
	require.NoError(t, err)
	return key
}

// ensure builds the environment and must be able to.
func (p *place) ensure(t testing.TB, s api.EnvironmentSpec) api.EnvironmentResult {
	t.Helper()
	var said []string
	r, err := p.store.Ensure(t.Context(), s, false, func(line string) { said = append(said, line) })
	require.NoError(t, err)
	require.Nil(t, r.Failure, "%+v", r.Failure)
	require.NotNil(t, r.Environment)
	if !r.Cached {
		require.NotEmpty(t, said)
	}
	return r
}

// refused is the failure of an environment that cannot be made.
func (p *place) refused(t testing.TB, s api.EnvironmentSpec) api.EnvironmentFailure {
	t.Helper()
	r, err := p.store.Ensure(t.Context(), s, false, nil)
	require.NoError(t, err)
	require.NotNil(t, r.Failure)
	assert.Nil(t, r.Environment)
	assert.Equal(t, api.KindInstall, r.Failure.Kind)
	assert.LessOrEqual(t, len(r.Failure.Output), 8<<10)
	p.nothingLeft(t)
	return *r.Failure
}

// nothingLeft holds when no build has left anything.
func (p *place) nothingLeft(t testing.TB) {
	t.Helper()
	trees, links, err := p.host.Environments().List()
	require.NoError(t, err)
	in := map[string]bool{}
	for _, tree := range links {
		in[tree] = true
	}
	for _, tree := range trees {
		assert.True(t, in[tree], "%s is nobody's", tree)
	}
	records, err := filepath.Glob(filepath.Join(p.config.StateDir, "*"))
	require.NoError(t, err)
	assert.Len(t, records, len(links))
}

// wheel puts one into the place's packages: a pure one whose module has the
// text. needs are its own requirements.
func (p *place) wheel(t testing.TB, name, version, text string, needs ...string) {
	t.Helper()
	module := strings.ReplaceAll(name, "-", "_")
	meta := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", name, version)
	for _, n := range needs {
		meta += "Requires-Dist: " + n + "\n"
	}
	files := [][2]string{
		{module + ".py", text},
		{module + "-" + version + ".dist-info/METADATA", meta},
		{module + "-" + version + ".dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{module + "-" + version + ".dist-info/entry_points.txt", "[console_scripts]\n" + name + " = " + module + ":main\n"},
	}
	record := ""
	for _, f := range files {
		record += f[0] + ",,\n"
	}
	files = append(files, [2]string{module + "-" + version + ".dist-info/RECORD", record + module + "-" + version + ".dist-info/RECORD,,\n"})
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		w, err := z.Create(f[0])
		require.NoError(t, err)
		_, err = w.Write([]byte(f[1]))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	p.put(t, fmt.Sprintf("%s-%s-py3-none-any.whl", module, version), b.Bytes())
}

// sdist puts a source archive into the place's packages, whose own build runs
// the Python text first. It needs no package to be built.
func (p *place) sdist(t testing.TB, name, version, text string) {
	t.Helper()
	module := strings.ReplaceAll(name, "-", "_")
	top := module + "-" + version
	backend := text + `
import os, zipfile
def build_wheel(where, config_settings=None, metadata_directory=None):
    hostile_build()
    name = "` + module + "-" + version + `-py3-none-any.whl"
    info = "` + module + "-" + version + `.dist-info/"
    with zipfile.ZipFile(os.path.join(where, name), "w") as z:
        z.writestr("` + module + `.py", "value = 1\n")
        z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: ` + name + `\nVersion: ` + version + `\n")
        z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(info + "RECORD", "")
    return name
`
	p.put(t, top+".tar.gz", tarball(t, map[string]string{
		top + "/PKG-INFO":       "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n",
		top + "/pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
		top + "/backend.py":     backend,
	}))
}

// module puts an npm tarball into the place's packages.
func (p *place) module(t testing.TB, name, version, manifest, text string) {
	t.Helper()
	p.put(t, strings.NewReplacer("@", "", "/", "-").Replace(name)+"-"+version+".tgz", tarball(t, map[string]string{
		"package/package.json": fmt.Sprintf(`{"name":%q,"version":%q,"main":"index.js"%s}`, name, version, manifest),
		"package/index.js":     text,
	}))
}

func tarball(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	g := gzip.NewWriter(&b)
	w := tar.NewWriter(g)
	for name, text := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err := w.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, g.Close())
	return b.Bytes()
}

func (p *place) put(t testing.TB, name string, text []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(p.packages, name), text, 0o644))
}

// strongest is the level that most tests run at: namespaces, with root or
// without.
const strongest = slots.LevelNS

// levels are the ways to hold slots apart.
var levels = []slots.Level{slots.LevelLandlock, slots.LevelUID, slots.LevelUIDLandlock, slots.LevelNS}
