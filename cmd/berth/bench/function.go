package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"berth/sandboxd/api"
)

// functionMeasurements lists the rows of function tools.
func functionMeasurements() []measurement {
	const python, node = " × python3 -c pass", " × node -e 0"
	at := func(v ...float64) []float64 { return v }
	return []measurement{
		{bar: bar{"trivial Python function by POST /execute, warm", python, false, at(0.5), at(0.25)}, slots: functionSlots, measure: measureFunction},
		{bar: bar{"Python functions, 8 at once on 8 slots: runs per second", python, true, at(4), at(8)}, slots: functionSlots, measure: measureFunctions},
		{bar: bar{"Python function that returns a pydantic model, warm", python, false, at(1.2), at(0.4)}, slots: functionSlots, measure: measureModel},
		{bar: bar{"trivial JavaScript function by POST /execute, warm", node, false, at(1), at(0.2)}, slots: functionSlots, measure: measureScript},
	}
}

const functionSlots = 8

const (
	trivialFunction = "def f(x):\n    return x\n"
	modelFunction   = "from pydantic import BaseModel\n\nclass M(BaseModel):\n    x: int\n    name: str\n\ndef f(x):\n    return M(x=x, name='n')\n"
	scriptFunction  = "exports.f = (x) => x;\n"
)

// callFunction runs a function of one argument on the slot.
func (b *bench) callFunction(ctx context.Context, slot int, sourceType, source string) error {
	args := map[string]any{
		"name": "f", "source_code": source, "source_type": sourceType, "args": map[string]any{"x": 1},
	}
	if sourceType == api.SourceJavaScript {
		args["json_schema"] = map[string]any{"type": "object", "properties": map[string]any{"x": map[string]any{}}, "required": []string{"x"}}
	}
	r, err := b.execute(ctx, slot, api.FunctionTool, args)
	if err != nil {
		return err
	}
	f, err := r.FunctionResult()
	if err == nil && f == nil {
		err = errors.New("the container answered a function without its result")
	}
	return err
}

// program is the run of the program that slots find by that name, which on a
// developer's own PATH may be a script of many milliseconds.
func (b *bench) program(ctx context.Context, name string, args ...string) (timed, error) {
	found, err := b.bash(ctx, 0, "command -v "+name)
	if err != nil {
		return nil, fmt.Errorf("find %s in a slot: %w", name, errors.Join(exec.ErrNotFound, err))
	}
	return func(context.Context) error {
		cmd := exec.Command(found.Output, args...) //nolint:noctx,gosec // see floorCommand; the rows' own programs
		cmd.Env = floorEnvironment()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("run %s: %w", name, err)
		}
		return nil
	}, nil
}

func (b *bench) python(ctx context.Context, code string) (timed, error) {
	return b.program(ctx, "python3", "-c", code)
}

func measureFunction(ctx context.Context, b *bench) (finding, error) {
	bare, err := b.python(ctx, "pass")
	if err != nil {
		return finding{}, err
	}
	return b.compareFunction(ctx, b.Runs, bare, func(ctx context.Context) error {
		return b.callFunction(ctx, 0, api.SourcePython, trivialFunction)
	})
}

// measureModel needs pydantic where the slots' python3 finds it.
func measureModel(ctx context.Context, b *bench) (finding, error) {
	model, err := b.python(ctx, "import pydantic")
	if err != nil {
		return finding{}, err
	}
	if err := model(ctx); err != nil {
		return finding{}, fmt.Errorf("pydantic: %w", errors.Join(exec.ErrNotFound, err))
	}
	bare, err := b.python(ctx, "pass")
	if err != nil {
		return finding{}, err
	}
	return b.compareFunction(ctx, b.Runs, bare, func(ctx context.Context) error {
		return b.callFunction(ctx, 0, api.SourcePython, modelFunction)
	})
}

// measureScript pauses after each run for as long as an interpreter takes to
// start: as between two calls of an agent, the next one stands ready by then.
// What runs take that follow each other at once stands beside it.
func measureScript(ctx context.Context, b *bench) (finding, error) {
	bare, err := b.program(ctx, "node", "-e", "0")
	if err != nil {
		return finding{}, err
	}
	run := func(ctx context.Context) error {
		return b.callFunction(ctx, 0, api.SourceJavaScript, scriptFunction)
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

const (
	scriptStarts = 5   // of node, for how long one takes
	scriptRuns   = 200 // at most, that the row takes less than a minute
)

func (b *bench) compareFunction(ctx context.Context, runs int, things ...timed) (finding, error) {
	took, err := inTurns(ctx, runs, things...)
	if err != nil {
		return finding{}, err
	}
	bare, ours := median(took[0]), median(took[1])
	return finding{
		values: []float64{ratio(ours, bare)},
		detail: fmt.Sprintf("%.2f ms, p99 %.2f; level %s", milliseconds(ours), milliseconds(percentile(took[1], 0.99)), b.level),
		floor:  fmt.Sprintf("%.2f ms", milliseconds(bare)),
	}, nil
}

// measureFunctions compares runs per second with as many workers as slots.
func measureFunctions(ctx context.Context, b *bench) (finding, error) {
	bare, err := b.python(ctx, "pass")
	if err != nil {
		return finding{}, err
	}
	rates, err := b.rates(ctx, b.slots, max(b.Runs/2, b.slots),
		func(ctx context.Context, _ int) error { return bare(ctx) },
		func(ctx context.Context, worker int) error {
			return b.callFunction(ctx, worker, api.SourcePython, trivialFunction)
		})
	if err != nil {
		return finding{}, err
	}
	theirs, ours := median(rates[0]), median(rates[1])
	return finding{
		values: []float64{ours / theirs},
		detail: fmt.Sprintf("%.0f/s", ours),
		floor:  fmt.Sprintf("%.0f/s", theirs),
	}, nil
}
