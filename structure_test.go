package berth_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	maxFileLines     = 600
	maxFunctionLines = 80
	module           = "berth"
)

// source is one Go file of the project.
type source struct {
	path  string // slash-separated, relative to the project's root
	lines int
	file  *ast.File
	fset  *token.FileSet
}

// dir is the folder of the file, "." for the root.
func (s source) dir() string { return path.Dir(s.path) }

// test reports whether the file belongs to tests only.
func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// at names a place in the file.
func (s source) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(pos).Line)
}

// imports lists the paths that the file imports.
func (s source) imports() []string {
	var out []string
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// files lists every file of the project but what git ignores.
func files(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", ".bin", "bin", "node_modules"}, name):
			return filepath.SkipDir
		case name == ".git": // a file, in a further work tree
		case entry.Type().IsRegular():
			out = append(out, filepath.ToSlash(name))
		}
		return nil
	})
	require.NoError(t, err)
	return out
}

// sources parses every Go file of the project.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "/testdata/") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		out = append(out, source{path: name, lines: bytes.Count(text, []byte("\n")), file: file, fset: fset})
	}
	require.NotEmpty(t, out)
	return out
}

func TestStructureHasTheFixedTopLevel(t *testing.T) {
	allowed := []string{
		"sandboxd", "orchestrator", "slots", "jobs", "images", "cmd", "clients", "docs", ".ci",
		"go.mod", "go.sum", "Makefile", "README.md", ".golangci.yml", ".gitignore", "structure_test.go",
		".git", ".bin", "bin",
	}
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	ignored := regexp.MustCompile(`\.(test|prof|out)$`) // by git
	for _, entry := range entries {
		if ignored.MatchString(entry.Name()) {
			continue
		}
		assert.Contains(t, allowed, entry.Name(), "the top level is fixed, so that everybody finds everything")
	}
}

func TestStructureEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		word := "Package " + s.file.Name.Name + " "
		if s.file.Name.Name == "main" {
			word = "Command " + path.Base(s.dir()) + " "
		}
		documented[s.dir()] = documented[s.dir()] || strings.HasPrefix(s.file.Doc.Text(), word)
	}
	for dir, ok := range documented {
		assert.True(t, ok, "%s has no package comment that begins with its name", dir)
	}
}

func TestStructureFilesAndFunctionsFitOnAFewScreens(t *testing.T) {
	for _, s := range sources(t) {
		assert.LessOrEqual(t, s.lines, maxFileLines, "%s is too long: a file is one noun or one verb", s.path)
		if s.test() {
			continue // a table of cases is one ordered list
		}
		for _, decl := range s.file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			lines := s.fset.Position(fn.Body.Rbrace).Line - s.fset.Position(fn.Body.Lbrace).Line
			assert.LessOrEqual(t, lines, maxFunctionLines, "%s: %s is too long", s.at(fn.Pos()), fn.Name.Name)
		}
	}
}

func TestStructureNothingHappensByImport(t *testing.T) {
	for _, s := range sources(t) {
		for _, decl := range s.file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				assert.NotEqual(t, "init", fn.Name.Name, "%s: an init function runs whether one wants it or not", s.at(fn.Pos()))
			}
		}
	}
}

// Each holder is the agent's program, started twice: what packages compute when
// they are loaded is computed for every slot, at every reset.
func TestStructureNoExpressionIsCompiledAtTheStartOfAHolder(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() || !strings.HasPrefix(s.path, "slots/") && !strings.HasPrefix(s.path, "sandboxd/") {
			continue
		}
		for _, decl := range s.file.Decls {
			if vars, ok := decl.(*ast.GenDecl); ok {
				assert.False(t, compiles(vars), "%s: compile it when it is first used, by sync.OnceValue", s.at(vars.Pos()))
			}
		}
	}
}

// compiles reports whether a declaration compiles a regular expression when it
// is evaluated.
func compiles(vars *ast.GenDecl) (found bool) {
	ast.Inspect(vars, func(n ast.Node) bool {
		if call, ok := n.(*ast.SelectorExpr); ok && call.Sel.Name == "MustCompile" {
			found = true
		}
		_, later := n.(*ast.FuncLit)
		return !later
	})
	return found
}

// importRule says what the packages that match in may not import.
type importRule struct {
	in     string   // regular expression over a package's folder
	except string   // regular expression over folders that are exempt; "" exempts none
	denied string   // regular expression over import paths
	but    []string // import paths that are allowed all the same
	tests  bool     // test files obey as well
	reason string
}

var importRules = []importRule{
	{
		in: `^slots$`, denied: `^[^/]+\.|^` + module + `/|^(net|os|syscall)(/|$)`,
		reason: "slots holds words and rules: the standard library only, and no I/O",
	},
	{
		in: `^slots/`, denied: `^github\.com/hashicorp/go-hclog|^log(/|$)`,
		reason: "slots reports errors, its callers log",
	},
	{
		in: `^slots/`, denied: `^net/http(/|$)|^github\.com/labstack/echo`,
		reason: "slots knows no HTTP",
	},
	{
		in: `^slots(/|$)`, denied: `^` + module + `/(sandboxd|orchestrator|jobs|cmd)(/|$)`, tests: true,
		reason: "arrows point down: slots is what the others stand on",
	},
	{
		in: `^sandboxd/api$`, denied: `^[^/]+\.|^` + module + `/`, but: []string{module + "/slots"},
		reason: "the wire types are for every client, so they drag nothing along",
	},
	{
		in: `^sandboxd(/|$)`, denied: `^` + module + `/(orchestrator|jobs|cmd)(/|$)|^github\.com/hashicorp/nomad`, tests: true,
		reason: "the agent knows neither its orchestrator nor its scheduler",
	},
	{
		in: `^orchestrator(/|$)`, except: `/nomadtest$`, denied: `^` + module + `/(slots|sandboxd|cmd)(/|$)`,
		but:    []string{module + "/slots", module + "/sandboxd/api", module + "/sandboxd/client", module + "/sandboxd/httpkit", module + "/sandboxd/listen", module + "/sandboxd/terminal"},
		reason: "the control plane sees a container through its api and client, never its mechanisms",
	},
	{
		in: `^sandboxd/httpkit$`, denied: `^[^/]+\.|^` + module + `/`, but: []string{module + "/slots", module + "/sandboxd/api"},
		reason: "both servers stand on it, so it knows neither of them, nor how they route",
	},
	{
		in: `.`, except: `^(sandboxd|orchestrator)/httpapi$`, denied: `^` + module + `/sandboxd/httpkit$`,
		reason: "it is a part of the httpapi packages",
	},
	{
		in: `^sandboxd/terminal$`, denied: `^` + module + `/`, but: []string{module + "/slots", module + "/sandboxd/api"},
		reason: "servers and clients stand on it, so it knows none of them",
	},
	{
		in: `.`, except: `^sandboxd/terminal$`, denied: `^github\.com/gorilla/websocket`,
		reason: "only sandboxd/terminal speaks WebSocket",
	},
	{
		in: `^orchestrator/poolapi$`, denied: `^[^/]+\.|^` + module + `/`, but: []string{module + "/slots", module + "/sandboxd/api"},
		reason: "the wire types are for every client, so they drag nothing along",
	},
	{
		in: `^orchestrator/client$`, denied: `^` + module + `/orchestrator/`, but: []string{module + "/orchestrator/poolapi"},
		reason: "a client knows what travels, and nothing of how the orchestrator works",
	},
	{
		in: `^(orchestrator/(pool|dispatch|autoscale)|sandboxd/execution)$`, denied: `^(net|os/exec|syscall)(/|$)`,
		reason: "no I/O but through an interface, so that it runs under synctest",
	},
	{
		in: `^orchestrator/(pool|dispatch|autoscale)$`, denied: `^os(/|$)`,
		reason: "no I/O but through an interface, so that it runs under synctest",
	},
	{
		in: `.`, except: `^(jobs|orchestrator/backend/nomad)(/|$)`, denied: `^github\.com/hashicorp/nomad/api`, tests: true,
		reason: "only jobs and backend/nomad speak Nomad",
	},
	{
		in: `.`, except: `^(sandboxd|orchestrator)/httpapi(/|$)`, denied: `^github\.com/labstack/echo`, tests: true,
		reason: "only the httpapi packages speak HTTP with echo",
	},
	{
		in: `.`, except: `^orchestrator/config(/|$)`, denied: `^database/sql|^modernc\.org/sqlite`, tests: true,
		reason: "only orchestrator/config speaks SQL",
	},
	{
		in: `.`, except: `^orchestrator/strip$`, denied: `^github\.com/evanw/esbuild`, tests: true,
		reason: "what reads the sources of others runs in a process of its own",
	},
	{
		in: `.`, except: `^cmd/berth$`, denied: `^github\.com/spf13/cobra|^golang\.org/x/term$|^mvdan\.cc/sh`, tests: true,
		reason: "only the command line for people is one; the daemons stay small",
	},
	{
		in: `.`, except: `^slots(/|$)`, denied: `^golang\.org/x/sys/unix$`,
		reason: "only slots talks to the kernel",
	},
	{
		in: `.`, except: `/[a-z]+test$`, denied: `^` + module + `/(slots/need|[a-z/]+/[a-z]+test)$`,
		reason: "what serves tests is not part of a program",
	},
}

// broken lists the imports among paths that the rule forbids to the package in dir.
func (r importRule) broken(dir string, test bool, paths []string) []string {
	if test && !r.tests || !regexp.MustCompile(r.in).MatchString(dir) {
		return nil
	}
	if r.except != "" && regexp.MustCompile(r.except).MatchString(dir) {
		return nil
	}
	denied := regexp.MustCompile(r.denied)
	return slices.DeleteFunc(slices.Clone(paths), func(p string) bool {
		return !denied.MatchString(p) || slices.Contains(r.but, p)
	})
}

func TestStructureImportsPointDown(t *testing.T) {
	for _, s := range sources(t) {
		for _, rule := range importRules {
			for _, p := range rule.broken(s.dir(), s.test(), s.imports()) {
				assert.Fail(t, "import rule broken", "%s imports %s: %s", s.path, p, rule.reason)
			}
		}
	}
}

func TestStructureImportRulesCatchWhatTheyForbid(t *testing.T) {
	for _, c := range []struct {
		dir, path string
		test      bool
		reasons   int
	}{
		{"slots", "github.com/google/uuid", false, 1},
		{"slots", "berth/slots/process", false, 1},
		{"slots", "os", false, 1},
		{"slots", "errors", false, 0},
		{"slots", "github.com/stretchr/testify/assert", true, 0},
		{"slots/process", "log/slog", false, 1},
		{"slots/process", "net/http", false, 1},
		{"slots/process", "berth/sandboxd/api", true, 1},
		{"slots/process", "golang.org/x/sys/unix", false, 0},
		{"sandboxd/tool", "golang.org/x/sys/unix", false, 1},
		{"sandboxd/tool", "berth/slots/process", false, 0},
		{"sandboxd/tool", "github.com/labstack/echo/v4", false, 1},
		{"sandboxd/httpapi", "github.com/labstack/echo/v4", false, 0},
		{"sandboxd/httpkit", "github.com/labstack/echo/v4", false, 2},
		{"sandboxd/httpkit", "berth/sandboxd/api", false, 0},
		{"orchestrator/httpapi", "berth/sandboxd/httpkit", false, 0},
		{"orchestrator/calls", "berth/sandboxd/httpkit", false, 1},
		{"orchestrator/calls", "berth/sandboxd/terminal", false, 0},
		{"sandboxd/terminal", "berth/sandboxd/client", false, 1},
		{"sandboxd/httpapi", "github.com/gorilla/websocket", false, 1},
		{"sandboxd/api", "berth/slots", false, 0},
		{"sandboxd/api", "berth/slots/process", false, 1},
		{"sandboxd/client", "berth/orchestrator/pool", true, 1},
		{"sandboxd/execution", "net", false, 1},
		{"sandboxd", "github.com/hashicorp/nomad/api", false, 2},
		{"orchestrator/poolapi", "berth/sandboxd/client", false, 1},
		{"orchestrator/poolapi", "berth/sandboxd/api", false, 0},
		{"orchestrator/client", "berth/orchestrator/pool", false, 1},
		{"orchestrator/client", "berth/orchestrator/poolapi", false, 0},
		{"orchestrator/pool", "berth/slots/process", false, 1},
		{"orchestrator/pool", "berth/sandboxd/client", false, 0},
		{"orchestrator/pool", "os", false, 1},
		{"orchestrator/backend/nomad", "github.com/hashicorp/nomad/api", false, 0},
		{"orchestrator/config", "database/sql", false, 0},
		{"orchestrator/function", "github.com/evanw/esbuild/pkg/api", false, 1},
		{"orchestrator/strip", "github.com/evanw/esbuild/pkg/api", false, 0},
		{"cmd/berth", "github.com/spf13/cobra", false, 0},
		{"sandboxd", "github.com/spf13/cobra", false, 1},
		{"cmd/sandboxd", "modernc.org/sqlite", false, 1},
		{"cmd/sandboxd", "berth/slots/need", false, 1},
		{"orchestrator", "berth/orchestrator/pool", false, 0},
	} {
		var reasons []string
		for _, rule := range importRules {
			if len(rule.broken(c.dir, c.test, []string{c.path})) > 0 {
				reasons = append(reasons, rule.reason)
			}
		}
		assert.Len(t, reasons, c.reasons, "%s imports %s: %q", c.dir, c.path, reasons)
	}
}

// identifier is one name that a file gives to something.
type identifier struct {
	name string
	pos  token.Pos
}

// declared lists the names that the file declares. Struct fields that carry
// the name of their wire form are left out: the protocol chose those.
func declared(file *ast.File) []identifier {
	var out []identifier
	add := func(names ...*ast.Ident) {
		for _, n := range names {
			out = append(out, identifier{n.Name, n.Pos()})
		}
	}
	define := func(tok token.Token, names ...ast.Expr) {
		for _, e := range names {
			if id, ok := e.(*ast.Ident); ok && tok == token.DEFINE {
				add(id)
			}
		}
	}
	add(file.Name)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.Field:
			if n.Tag == nil || !strings.Contains(n.Tag.Value, `json:"`) {
				add(n.Names...)
			}
		case *ast.AssignStmt:
			define(n.Tok, n.Lhs...)
		case *ast.RangeStmt:
			define(n.Tok, n.Key, n.Value)
		}
		return true
	})
	return out
}

// words splits a name at its humps and underscores, in lower case.
func words(name string) []string {
	var out []string
	var word []rune
	runes := []rune(name)
	for i, r := range runes {
		startsWord := unicode.IsUpper(r) && (i == 0 || !unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if (startsWord || r == '_') && len(word) > 0 {
			out, word = append(out, strings.ToLower(string(word))), nil
		}
		if r != '_' {
			word = append(word, r)
		}
	}
	return append(out, strings.ToLower(string(word)))
}

// emptyWords say nothing about what they name.
var emptyWords = []string{"manager", "util", "helper", "common", "base", "impl", "data", "info", "processor", "wrapper"}

// foreignNames are not ours to choose.
var foreignNames = map[string]string{
	"DataDir": "the flag --data-dir of the reference server",
	"dataDir": "the flag --data-dir of the reference server",
	"Info":    "a method of fs.DirEntry",
}

// emptyWord returns the first word of name that says nothing, or "".
func emptyWord(name string) string {
	if _, foreign := foreignNames[name]; foreign {
		return ""
	}
	for _, w := range words(name) {
		if slices.Contains(emptyWords, w) || slices.Contains(emptyWords, strings.TrimSuffix(w, "s")) {
			return w
		}
	}
	return ""
}

func TestStructureNamesSaySomething(t *testing.T) {
	for _, s := range sources(t) {
		assert.Empty(t, emptyWord(strings.ReplaceAll(strings.TrimSuffix(s.path, ".go"), "/", "_")), "%s: name it after what is in it", s.path)
		if s.test() {
			continue
		}
		for _, id := range declared(s.file) {
			assert.Empty(t, emptyWord(id.name), "%s: %s: name it after what it is", s.at(id.pos), id.name)
		}
	}
}

func TestStructureEmptyWordsAreFoundInNames(t *testing.T) {
	for name, want := range map[string]string{
		"poolManager": "manager", "HTTPHelper": "helper", "data": "data", "utils": "utils", "Base": "base",
		"base64": "", "Metadata": "", "database": "", "simple": "", "DataDir": "", "sharedBase_x": "base",
	} {
		assert.Equal(t, want, emptyWord(name), name)
	}
}

func TestStructureSpeaksOfTheProjectOnly(t *testing.T) {
	// Character classes keep this line from finding itself.
	foreign := regexp.MustCompile(`/(wor[k]|far[m])/|bash_job[s]|\.librar[y]|developer[s].? session|DEVELOPER[S]\.md|/tmp/bert[h]/`)
	for _, name := range files(t) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if bytes.IndexByte(text, 0) >= 0 {
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		lines.Buffer(nil, len(text)+1)
		for n := 1; lines.Scan(); n++ {
			assert.NotRegexp(t, foreign, lines.Text(), "%s:%d speaks of the place where it was written", name, n)
		}
		require.NoError(t, lines.Err(), name)
	}
}

// hostileCases is how many cases each family has of what hostile code in a slot
// tries; every one is a test that has the case's id in its name.
var hostileCases = map[string]int{"R": 24, "S": 23, "A": 20, "X": 24, "E": 20, "F": 27}

func TestStructureEveryHostileCaseHasATest(t *testing.T) {
	ids := regexp.MustCompile(`^(?:Test|/)?((?:[A-Z][0-9]{2}_?)+)[A-Za-z]`)
	id := regexp.MustCompile(`[A-Z][0-9]{2}`)
	tested := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test() {
			continue
		}
		note := func(name string) {
			if m := ids.FindStringSubmatch(name); m != nil {
				for _, id := range id.FindAllString(m[1], -1) {
					tested[id] = true
				}
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				note(n.Name.Name)
			case *ast.BasicLit: // the name of a case in a table
				if name, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && strings.Contains(s.dir(), "hostile") {
					note(name)
				}
			}
			return true
		})
	}
	for family, count := range hostileCases {
		for n := 1; n <= count; n++ {
			assert.True(t, tested[fmt.Sprintf("%s%02d", family, n)], "no test has %s%02d in its name", family, n)
		}
	}
}

func TestStructureGoModIsClean(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json").Output()
	require.NoError(t, err)
	var mod struct {
		Module  struct{ Path string }
		Go      string
		Require []struct {
			Path     string
			Indirect bool
		}
		Toolchain        string
		Replace, Exclude []any
	}
	require.NoError(t, json.Unmarshal(out, &mod))
	assert.Equal(t, module, mod.Module.Path)
	assert.Equal(t, "1.26.0", mod.Go)
	assert.Empty(t, mod.Toolchain, "the go line says it")
	assert.Empty(t, mod.Replace, "a replace hides from whoever imports us")
	assert.Empty(t, mod.Exclude)

	imported := map[string]bool{}
	for _, s := range sources(t) {
		for _, p := range s.imports() {
			imported[p] = true
		}
	}
	for _, r := range mod.Require {
		used := false
		for p := range imported {
			used = used || p == r.Path || strings.HasPrefix(p, r.Path+"/")
		}
		if r.Indirect {
			assert.False(t, used, "%s is imported: go mod tidy makes it a direct requirement", r.Path)
		} else {
			assert.True(t, used, "nothing imports %s: go mod tidy drops it", r.Path)
		}
	}
}
