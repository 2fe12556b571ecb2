package environment

import (
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"

	"berth/sandboxd/api"
	"berth/slots"
)

// aboutPython has an interpreter say what it is, and what it can install with.
const aboutPython = `import importlib.util, json, os, sys
def has(name): return importlib.util.find_spec(name) is not None
pip = ""
if has("pip"):
    import pip as module
    pip = module.__version__
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "path": os.path.realpath(sys.executable), "pip": pip, "ensurepip": has("ensurepip")}))`

// pythonFacts is the answer.
type pythonFacts struct {
	Version   string `json:"version"`
	Path      string `json:"path"`
	Pip       string `json:"pip"` // its version; "" when it is not there
	Ensurepip bool   `json:"ensurepip"`
}

// python makes a virtual environment: with uv where the container has it, else
// with venv and pip.
func (w *workshop) python() (interpreter, error) {
	if err := w.begin(); err != nil {
		return interpreter{}, err
	}
	program, facts, err := w.findPython()
	if err != nil {
		return interpreter{}, err
	}
	install, check, err := w.prepare(program, facts)
	if err != nil {
		return interpreter{}, err
	}
	for _, r := range w.spec.Requirements {
		install = append(install, r.Argument(api.LanguagePython))
	}
	output, code, err := w.run(command{argv: install, env: w.pythonIndex()})
	if err == nil && code != 0 {
		err = w.judge(output)
	}
	if err != nil {
		return interpreter{}, err
	}
	for _, argv := range [][]string{check, {w.inTree("bin", "python3"), "-c", "import sys"}} {
		output, code, err := w.run(command{argv: argv, env: w.pythonIndex()})
		if err == nil && code != 0 {
			err = w.fault(api.InstallVerify, "", output)
		}
		if err != nil {
			return interpreter{}, err
		}
	}
	return interpreter{Version: facts.Version, Path: facts.Path}, w.finish()
}

func (w *workshop) inTree(parts ...string) string {
	return path.Join(append([]string{w.space.Path()}, parts...)...)
}

// findPython finds an interpreter of the version that is wanted.
func (w *workshop) findPython() (program string, facts pythonFacts, err error) {
	want := w.spec.Version
	candidates := []string{"python3"}
	if parts := strings.SplitN(want, ".", 3); len(parts) > 1 {
		candidates = []string{"python" + parts[0] + "." + parts[1], "python3"}
	}
	var found []string
	for _, program := range candidates {
		output, code, err := w.run(command{argv: []string{program, "-I", "-c", aboutPython}, quiet: true})
		if missing(err) || err == nil && code != 0 {
			continue
		}
		if err != nil {
			return "", facts, err
		}
		if err := json.Unmarshal([]byte(output), &facts); err != nil || !path.IsAbs(facts.Path) {
			continue
		}
		if want == "" || facts.Version == want || strings.HasPrefix(facts.Version, want+".") {
			return facts.Path, facts, nil
		}
		found = append(found, facts.Version)
	}
	switch {
	case want == "":
		return "", facts, lacking("the container has no python3")
	case len(found) > 0:
		return "", facts, lacking("the container has no Python %s, only %s", want, strings.Join(found, ", "))
	}
	return "", facts, lacking("the container has no Python %s", want)
}

// missing reports whether a program was not found.
func missing(err error) bool {
	return err != nil && slots.AsError(err).Kind == slots.KindNotFound
}

// prepare makes the environment, still empty, and returns the commands that
// install into it and check it.
func (w *workshop) prepare(program string, facts pythonFacts) (install, check []string, err error) {
	tree, own := w.space.Path(), w.inTree("bin", "python3")
	var links []string
	for _, at := range w.spec.Index.FindLinks {
		links = append(links, "--find-links", at)
	}
	if w.spec.Index.NoIndex {
		links = append(links, "--no-index")
	}
	_, code, err := w.run(command{argv: []string{"uv", "--version"}, quiet: true})
	if err == nil && code == 0 {
		uv := []string{"uv", "--no-cache", "--no-progress", "--no-python-downloads"}
		w.say("making the environment with uv")
		err := w.must(append(uv, "venv", "--quiet", "--allow-existing", "--no-project", "--python", program, tree))
		install = append(uv, "pip", "install", "--python", own, "--link-mode", "copy", "--compile-bytecode")
		return append(install, links...), append(uv, "pip", "check", "--python", own), err
	}
	if err != nil && !missing(err) {
		return nil, nil, err
	}
	pip := []string{program, "-I", "-m", "pip", "--python", own}
	venv := []string{program, "-I", "-m", "venv", "--without-pip", tree}
	switch {
	case atLeast(facts.Pip, 22, 3):
	case facts.Ensurepip:
		// An old pip, or none, cannot install elsewhere: the environment gets
		// one of its own.
		venv = []string{program, "-I", "-m", "venv", tree}
		pip = []string{own, "-m", "pip"}
	default:
		return nil, nil, lacking("the container's python3 has neither pip nor ensurepip, and there is no uv: install uv, or the packages python3-pip or python3-venv")
	}
	w.say("making the environment with venv and pip")
	if err := w.must(venv); err != nil {
		return nil, nil, err
	}
	install = append(slices.Clip(pip), "install", "--no-cache-dir", "--no-warn-script-location")
	return append(install, links...), append(slices.Clip(pip), "check"), nil
}

// must runs a program that has no reason to fail but the container's.
func (w *workshop) must(argv []string) error {
	output, code, err := w.run(command{argv: argv})
	if err == nil && code != 0 {
		err = w.judge(output)
	}
	return err
}

// atLeast compares the first two numbers of a version.
func atLeast(version string, major, minor int) bool {
	var a, b int
	for i, part := range strings.SplitN(version, ".", 3) {
		n := 0
		for _, c := range part {
			if c < '0' || c > '9' {
				break
			}
			n = n*10 + int(c-'0')
		}
		switch i {
		case 0:
			a = n
		case 1:
			b = n
		}
	}
	return a > major || a == major && b >= minor
}

// pythonIndex is where packages come from, as variables: arguments show in the
// process table, and a URL may have a password.
func (w *workshop) pythonIndex() []string {
	x := w.spec.Index
	env := []string{
		"PIP_NO_INPUT=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_PROGRESS_BAR=off", "PIP_ROOT_USER_ACTION=ignore", "PYTHONNOUSERSITE=1",
	}
	if x.IndexURL != "" {
		env = append(env, "PIP_INDEX_URL="+x.IndexURL, "UV_DEFAULT_INDEX="+x.IndexURL, "UV_INDEX_URL="+x.IndexURL)
	}
	if len(x.ExtraIndexURLs) > 0 {
		all := strings.Join(x.ExtraIndexURLs, " ")
		env = append(env, "PIP_EXTRA_INDEX_URL="+all, "UV_EXTRA_INDEX_URL="+all)
	}
	// Who names an index by http has decided to trust it; pip wants that said.
	var plain []string
	for _, at := range append(append([]string{x.IndexURL}, x.ExtraIndexURLs...), x.FindLinks...) {
		if u, err := url.Parse(at); err == nil && u.Scheme == "http" {
			plain = append(plain, u.Host)
		}
	}
	if len(plain) > 0 {
		env = append(env, "PIP_TRUSTED_HOST="+strings.Join(plain, " "))
	}
	return env
}
