package strip

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/evanw/esbuild/pkg/api"
)

// Role is the first argument of a process that reads a source. The second one
// is the source's type.
const Role = "strip"

// TypeScript is the type of sources whose types are left out; every other one
// is JavaScript.
const TypeScript = "typescript"

// Bounds of a process that reads a source.
const (
	maxStack  = 64 << 20  // thousands of levels
	maxMemory = 512 << 20 // of what it can write to
	maxScript = 16 << 20  // what is nested is indented, and so becomes longer
)

// made is what such a process writes: one of its fields.
type made struct {
	Script string `json:"script,omitempty"`
	Wrong  string `json:"wrong,omitempty"`
}

// size is what it takes to keep it.
func (m made) size() int { return len(m.Script) + len(m.Wrong) }

// Main is a process that reads a source from the standard input, as Role says.
// It returns the exit status.
func Main(sourceType string) int {
	// Who started it ends it; this is for when nobody does any more.
	time.AfterFunc(2*maxTime, func() { os.Exit(1) })
	debug.SetMaxStack(maxStack)
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: maxMemory, Max: maxMemory}); err != nil {
		fmt.Fprintln(os.Stderr, "bound memory:", err)
		return 1
	}
	source, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(transform(sourceType, string(source)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Of a source so many errors are told, and so many bytes of each: one may quote
// a name of any length.
const (
	maxErrors = 5
	maxError  = 200
)

// transform reads the source. What is wrong says where, with the number of the
// line but without its text.
func transform(sourceType, source string) made {
	o := api.TransformOptions{
		Loader: api.LoaderJS, Target: api.ES2022, Format: api.FormatCommonJS, Platform: api.PlatformNode, LogLevel: api.LogLevelSilent,
	}
	if sourceType == TypeScript {
		o.Loader = api.LoaderTS
	}
	read := api.Transform(source, o)
	switch {
	case len(read.Errors) == 0 && len(read.Code) <= maxScript:
		return made{Script: string(read.Code)}
	case len(read.Errors) == 0:
		return made{Wrong: fmt.Sprintf("the script of the source has more than %d bytes", maxScript)}
	}
	var all []string
	for _, e := range read.Errors[:min(len(read.Errors), maxErrors)] {
		at := ""
		if e.Location != nil {
			at = fmt.Sprintf("line %d, column %d: ", e.Location.Line, e.Location.Column)
		}
		all = append(all, at+strings.ToValidUTF8(e.Text[:min(len(e.Text), maxError)], ""))
	}
	return made{Wrong: strings.Join(all, "; ")}
}
