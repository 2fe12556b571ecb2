package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/process"
	"berth/slots/sandbox"
)

// Slot is what a tool may do with the slot that it runs on. Each method
// returns soon after ctx ends.
type Slot interface {
	// Run runs one command. All its output is written when Run returns.
	Run(ctx context.Context, c sandbox.Command) (slots.Exit, error)
	// Shell runs one command in the slot's persistent shell.
	Shell(ctx context.Context, c sandbox.ShellCommand) (slots.Exit, sandbox.ShellState, error)
	// Job runs one job of an interpreter that may stand ready in the slot.
	Job(ctx context.Context, j sandbox.Job) (slots.Exit, sandbox.JobState, error)
	// Do runs one workspace operation as the slot. args and reply are the
	// operation's structs; in and out may be nil.
	Do(ctx context.Context, op string, args, reply any, in io.Reader, out io.Writer) error
}

// Call is one execution of a tool. Its deadline is the context's, whose cause
// is then sandbox.ErrTimedOut.
type Call struct {
	Args      json.RawMessage  // an object; empty and null mean {}
	Stdout    *process.Capture // takes the output of processes; the caller closes it
	Stderr    *process.Capture
	Live      bool            // the output is read while the call runs
	Timeout   api.Timeout     // as the client sent it, for the words of the answer
	Limit     time.Duration   // what Timeout came to
	Isolation slots.Isolation // what holds for the slot
}

// Tool is a named operation on a slot. Run must be safe for concurrent use.
type Tool interface {
	Name() string
	Run(ctx context.Context, s Slot, c Call) api.Result
}

// Registry finds tools by name. It does not change once made.
type Registry struct{ tools map[string]Tool }

// New makes a Registry of the tools. Two tools of one name are a programming
// error and panic.
func New(tools ...Tool) *Registry {
	r := &Registry{tools: make(map[string]Tool, len(tools))}
	for _, t := range tools {
		if _, taken := r.tools[t.Name()]; taken {
			panic(fmt.Sprintf("two tools are named %q", t.Name()))
		}
		r.tools[t.Name()] = t
	}
	return r
}

// Environments are what the tool "function" finds packages in.
type Environments interface {
	// Use finds an environment by its key and keeps it until done is called.
	// path is its directory as slots see it, another one each time that the
	// environment is built. One that is not there is a slots.KindNotFound.
	Use(key string) (path string, done func(), err error)
}

// Builtin lists every tool of this package, for New. environments may be nil:
// there are none. home is the directory that functions run in, as slots see it;
// "": their workspace.
func Builtin(environments Environments, home string) []Tool {
	return []Tool{
		bash{},
		bashStateful{},
		readFile{},
		writeFile{},
		editFile{},
		listDir{},
		glob{},
		grep{},
		function{environments, home},
	}
}

// Get finds a tool. The error's text is the reference's.
func (r *Registry) Get(name string) (Tool, error) {
	if t, ok := r.tools[name]; ok {
		return t, nil
	}
	return nil, slots.Errorf(slots.KindBadRequest, "Unknown tool: %.80s", name)
}

// Names lists the tools' names, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.tools)) }
