package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"berth/cmd/berth/tooldemo"
	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

// toolSlots is how many slots the pool has that runs tools: rows run one at a
// time, and hold a lease besides.
const toolSlots = 4

// toolMeasurements lists the rows of tools that a pool runs.
func toolMeasurements() []measurement {
	at := func(v ...float64) []float64 { return v }
	row := func(b bar, measure func(context.Context, *bench) (finding, error)) measurement {
		return measurement{bar: b, pool: toolsPool, measure: measure}
	}
	return []measurement{
		row(bar{"trivial TypeScript tool by POST /v1/tools/run, warm", " × node -e 0", false, at(1), at(0.2)}, measureScript),
		row(bar{"a further run with the same pip requirements: time for its environment, p50", " ms", false, at(1), nil}, measurePip),
		row(bar{"a further run with the same npm requirements: time for its environment, p50", " ms", false, at(1), nil}, measureNpm),
		row(bar{"secrets in answers, errors, logs, metrics, files and crash dumps", "", false, at(0), nil}, measureSecrets),
	}
}

// tools is what a pool runs tools with. Every run is given the secrets, and what
// it answers is kept, to look for them.
type tools struct {
	dir, key, packages string
	secrets            tooldemo.Secrets
	organization       client.Organization
	answers            []poolapi.ToolResult
}

// newTools makes the packages that tools need, and a key for their variables.
func newTools(ctx context.Context, orchestrator string) (*tools, error) {
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	t := &tools{dir: dir, key: filepath.Join(dir, "key"), secrets: tooldemo.NewSecrets()}
	if t.packages, err = tooldemo.PlacePackages(dir); err != nil {
		return nil, errors.Join(err, t.remove())
	}
	key, err := exec.CommandContext(ctx, orchestrator, "key").Output() //nolint:gosec // the one to measure
	if err == nil {
		err = os.WriteFile(t.key, key, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make key: %w", err), t.remove())
	}
	return t, nil
}

// connect sets the variables of the organization that the tools run for.
func (t *tools) connect(ctx context.Context, pool *client.Client) error {
	t.organization = pool.Organization("bench")
	config, err := t.organization.DefaultSandbox(ctx, poolapi.SandboxIsolated)
	if err != nil {
		return err
	}
	for _, v := range tooldemo.Variables(t.packages, t.secrets) {
		if _, err := t.organization.PutVariable(ctx, config.ID, v); err != nil {
			return err
		}
	}
	return nil
}

func (t *tools) remove() error {
	if t == nil {
		return nil
	}
	if err := os.RemoveAll(t.dir); err != nil {
		return fmt.Errorf("remove directory: %w", err)
	}
	return nil
}

// RunTool runs the tool with the secrets that it has not.
func (t *tools) RunTool(ctx context.Context, run poolapi.ToolRun) (poolapi.ToolResult, error) {
	if run.Agent == nil {
		run.Agent = &poolapi.ToolAgent{ID: "bench", Secrets: map[string]*string{"TOKEN": &t.secrets.Token}}
	}
	result, err := t.organization.RunTool(ctx, run)
	t.answers = append(t.answers, result)
	return result, err
}

// run runs a tool that has to succeed.
func (t *tools) run(ctx context.Context, run poolapi.ToolRun) (poolapi.ToolResult, error) {
	result, err := t.RunTool(ctx, run)
	switch {
	case err != nil:
		return result, err
	case result.Error == nil:
		return result, nil
	case result.Error.Kind == api.FunctionInstall || result.Error.Kind == api.FunctionSpawn:
		return result, fmt.Errorf("%s: %w: %s", installers[run.Tool.SourceType], exec.ErrNotFound, result.Text)
	default:
		return result, fmt.Errorf("tool failed: %s", result.Text)
	}
}

// installers are what slots need for packages.
var installers = map[string]string{
	"python":     "slots need python3 with uv, or with venv and pip (apt-get install python3-venv python3-pip)",
	"typescript": "slots need node with npm (apt-get install nodejs npm)",
}

// scriptTool has types to strip, as models write them.
var scriptTool = poolapi.Tool{
	Name: "f", SourceType: "typescript",
	SourceCode: "interface Given { x: number }\nexport function f(x: number, more?: Given): number {\n  return x as number;\n}\n",
	JSONSchema: json.RawMessage(`{"type":"object","properties":{"x":{"type":"integer"},"more":{"type":"object"}},"required":["x"]}`),
}

var oneArgument = map[string]json.RawMessage{"x": json.RawMessage("1")}

const (
	scriptStarts = 5   // of node, for how long one takes
	scriptRuns   = 200 // at most, that the row takes less than a minute
)

// measureScript pauses after each run for as long as an interpreter takes to
// start: as between two calls of an agent, the next one stands ready by then.
// What runs take that follow each other at once stands beside it.
func measureScript(ctx context.Context, b *bench) (finding, error) {
	bare, err := b.program(ctx, "node", "-e", "0")
	if err != nil {
		return finding{}, err
	}
	run := func(ctx context.Context) error {
		_, err := b.pool.tools.run(ctx, poolapi.ToolRun{Tool: scriptTool, Args: oneArgument})
		return err
	}
	started, err := inTurns(ctx, scriptStarts, bare)
	if err != nil {
		return finding{}, err
	}
	pause := median(started[0])
	found, err := b.compareFunction(ctx, min(b.Runs, scriptRuns), bare, run, func(ctx context.Context) error {
		select {
		case <-time.After(pause):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		return found, err
	}
	quick, err := inTurns(ctx, min(b.Runs, scriptRuns/2), run)
	if err != nil {
		return found, err
	}
	found.detail += fmt.Sprintf("; without a pause %.2f ms", milliseconds(median(quick[0])))
	return found, nil
}

func measurePip(ctx context.Context, b *bench) (finding, error) {
	return measureAgain(ctx, b, poolapi.Tool{
		Name: "f", SourceType: "python", SourceCode: "import berth_demo_prices\ndef f(x):\n    return berth_demo_prices.total('apple', x)\n",
		PipRequirements: []api.Requirement{{Name: "berth-demo-prices", Version: "==1.0"}},
	})
}

func measureNpm(ctx context.Context, b *bench) (finding, error) {
	tool := scriptTool
	tool.SourceCode = "import { plural } from 'berth-demo-words';\nexport const f = (x: number): string => plural('pear', x);\n"
	tool.NpmRequirements = []api.Requirement{{Name: "berth-demo-words", Version: "1.0.0"}}
	return measureAgain(ctx, b, tool)
}

// measureAgain has the tool's environment built, and then looks at what runs
// spend on it.
func measureAgain(ctx context.Context, b *bench, tool poolapi.Tool) (finding, error) {
	run := poolapi.ToolRun{Tool: tool, Args: oneArgument}
	first, err := b.pool.tools.run(ctx, run)
	if err != nil {
		return finding{}, err
	}
	var spent, total []float64
	for range b.Runs {
		r, err := b.pool.tools.run(ctx, run)
		if err != nil {
			return finding{}, err
		}
		if !r.Sandbox.EnvCached {
			return finding{}, errors.New("the environment was built again")
		}
		spent, total = append(spent, r.Timings.Env), append(total, r.Timings.Total)
	}
	return finding{
		values: []float64{median(spent)},
		detail: fmt.Sprintf("p99 %.3f of %d runs; the build %.0f ms, a whole run %.2f", percentile(spent, 0.99), len(spent), first.Timings.Env, median(total)),
	}, nil
}
