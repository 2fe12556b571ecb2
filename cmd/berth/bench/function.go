package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"berth/sandboxd/api"
)

// functionMeasurements lists the rows of functions that a container runs.
func functionMeasurements() []measurement {
	const python = " × python3 -c pass"
	at := func(v ...float64) []float64 { return v }
	return []measurement{
		{bar: bar{"trivial Python function by POST /execute, warm", python, false, at(0.5), at(0.25)}, slots: functionSlots, measure: measureFunction},
		{bar: bar{"Python functions, 8 at once on 8 slots: runs per second", python, true, at(4), at(8)}, slots: functionSlots, measure: measureFunctions},
		{bar: bar{"Python function that returns a pydantic model, warm", python, false, at(1.2), at(0.4)}, slots: functionSlots, measure: measureModel},
	}
}

const functionSlots = 8

const (
	trivialFunction = "def f(x):\n    return x\n"
	modelFunction   = "from pydantic import BaseModel\n\nclass M(BaseModel):\n    x: int\n    name: str\n\ndef f(x):\n    return M(x=x, name='n')\n"
)

// callFunction runs a Python function of one argument on the slot.
func (b *bench) callFunction(ctx context.Context, slot int, source string) error {
	r, err := b.execute(ctx, slot, api.FunctionTool, map[string]any{
		"name": "f", "source_code": source, "source_type": api.SourcePython, "args": map[string]any{"x": 1},
	})
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
	found, err := b.inSlot(ctx, "command -v "+name)
	if err != nil {
		return nil, fmt.Errorf("slots find no %s (apt-get install %s): %w", name, packageOf[name], errors.Join(exec.ErrNotFound, err))
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

// packageOf says what has the programs.
var packageOf = map[string]string{"python3": "python3", "node": "nodejs"}

// inSlot runs a command of bash, which has to succeed, in a slot of what runs.
func (b *bench) inSlot(ctx context.Context, command string) (api.Result, error) {
	if b.pool == nil {
		return b.bash(ctx, 0, command)
	}
	leases, err := b.pool.hold(ctx, 1)
	if err != nil {
		return api.Result{}, err
	}
	result, err := b.pool.client.Execute(ctx, leases[0].ID, poolCall(command))
	if err != nil {
		return result, err
	}
	return result, succeeded(result)
}

func (b *bench) python(ctx context.Context) (timed, error) {
	return b.program(ctx, "python3", "-c", "pass")
}

func measureFunction(ctx context.Context, b *bench) (finding, error) {
	bare, err := b.python(ctx)
	if err != nil {
		return finding{}, err
	}
	return b.compareFunction(ctx, b.Runs, bare, func(ctx context.Context) error {
		return b.callFunction(ctx, 0, trivialFunction)
	})
}

// measureModel needs pydantic where the slots' python3 finds it.
func measureModel(ctx context.Context, b *bench) (finding, error) {
	bare, err := b.python(ctx)
	if err != nil {
		return finding{}, err
	}
	version, err := b.inSlot(ctx, "python3 -I -c 'import pydantic; print(pydantic.VERSION)'")
	if err != nil {
		return finding{}, fmt.Errorf("the slots' python3 has no pydantic (apt-get install python3-pydantic): %w", errors.Join(exec.ErrNotFound, err))
	}
	found, err := b.compareFunction(ctx, b.Runs, bare, func(ctx context.Context) error {
		return b.callFunction(ctx, 0, modelFunction)
	})
	found.detail += "; pydantic " + strings.TrimSpace(version.Output)
	return found, err
}

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
	bare, err := b.python(ctx)
	if err != nil {
		return finding{}, err
	}
	rates, err := b.rates(ctx, b.slots, max(b.Runs/2, b.slots),
		func(ctx context.Context, _ int) error { return bare(ctx) },
		func(ctx context.Context, worker int) error {
			return b.callFunction(ctx, worker, trivialFunction)
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
