package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// call makes a call of a tool on the slot with that number.
func call(slot int, tool string, args map[string]any) (api.Call, error) {
	text, err := json.Marshal(args)
	if err != nil {
		return api.Call{}, fmt.Errorf("encode arguments: %w", err)
	}
	return api.Call{SlotID: "slot_" + strconv.Itoa(slot), Tool: tool, Args: text, Timeout: api.Seconds(120)}, nil
}

// execute runs a call that has to succeed.
func (b *bench) execute(ctx context.Context, slot int, tool string, args map[string]any) (api.Result, error) {
	c, err := call(slot, tool, args)
	if err != nil {
		return api.Result{}, err
	}
	result, err := b.agent.Execute(ctx, c)
	if err != nil {
		return result, err
	}
	return result, succeeded(result)
}

func succeeded(r api.Result) error {
	if !r.Success {
		return fmt.Errorf("execution failed: %s: %.200s", r.Error, r.Output)
	}
	return nil
}

func (b *bench) bash(ctx context.Context, slot int, command string) (api.Result, error) {
	return b.execute(ctx, slot, "bash", map[string]any{"command": command})
}

// measureSingle compares one execution at a time on one slot, as a trajectory
// runs them, with the floor; and, because a slot that has slept is colder, on
// all slots in turn.
func measureSingle(ctx context.Context, b *bench) (finding, error) {
	slot := 0
	took, err := inTurns(ctx, b.Runs, floor, floorWithOutput, func(ctx context.Context) error {
		_, err := b.bash(ctx, 0, "true")
		return err
	}, func(ctx context.Context) error {
		slot = 1 + slot%(b.slots-1)
		_, err := b.bash(ctx, slot, "true")
		return err
	})
	if err != nil {
		return finding{}, err
	}
	bare, captured, ours, turns := median(took[0]), median(took[1]), median(took[2]), median(took[3])
	f := finding{
		values: []float64{ratio(ours, bare)},
		detail: fmt.Sprintf("%.2f ms, p99 %.2f; on %d slots in turn %.2f × floor; level %s",
			milliseconds(ours), milliseconds(percentile(took[2], 0.99)), b.slots-1, ratio(turns, bare), b.level),
		floor: fmt.Sprintf("%.2f ms; %.2f with its output captured", milliseconds(bare), milliseconds(captured)),
	}
	if b.level < slots.LevelNS {
		return f, fmt.Errorf("the bar is for level ns or better, this machine gave %s: %.2f × floor", b.level, f.values[0])
	}
	return f, nil
}

// roundShare is how many single runs stand for one round of many at once.
const roundShare = 30

// measureParallel compares executions per second with as many workers as slots.
func measureParallel(ctx context.Context, b *bench) (finding, error) {
	rates, err := b.rates(ctx, b.slots, max(b.Runs/2, b.slots),
		func(ctx context.Context, _ int) error { return floor(ctx) },
		func(ctx context.Context, _ int) error { return floorWithOutput(ctx) },
		func(ctx context.Context, worker int) error {
			_, err := b.bash(ctx, worker, "true")
			return err
		})
	if err != nil {
		return finding{}, err
	}
	return compareRates(rates), nil
}

// rates runs n of each side at once in rounds, one side after the other, and
// returns the executions per second of every round, per side. A round that
// does not count comes before.
func (b *bench) rates(ctx context.Context, workers, n int, sides ...func(ctx context.Context, worker int) error) ([][]float64, error) {
	rates := make([][]float64, len(sides))
	for round := range 1 + max(b.Runs/roundShare, 1) {
		for i, side := range sides {
			rate, err := atOnce(ctx, workers, n, side)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				rates[i] = append(rates[i], rate)
			}
		}
	}
	return rates, nil
}

// compareRates compares ours, the third side, with the floor and the floor
// with its output, the first two.
func compareRates(rates [][]float64) finding {
	bare, captured, ours := median(rates[0]), median(rates[1]), median(rates[2])
	return finding{
		values: []float64{ours / bare},
		detail: fmt.Sprintf("%.0f/s", ours),
		floor:  fmt.Sprintf("%.0f/s; %.0f with their output captured", bare, captured),
	}
}

const (
	batchSize = 64
	// batchTurns is how many single runs of the floor stand beside one batch.
	batchTurns = 5
)

// measureBatch compares one execution's share of a batch with the floor.
func measureBatch(ctx context.Context, b *bench) (finding, error) {
	calls := make([]api.Call, batchSize)
	for i := range calls {
		var err error
		if calls[i], err = call(i%b.slots, "bash", map[string]any{"command": "true"}); err != nil {
			return finding{}, err
		}
	}
	things := []timed{func(ctx context.Context) error {
		results, err := b.agent.Batch(ctx, calls)
		for _, r := range results {
			if err == nil {
				err = succeeded(r)
			}
		}
		return err
	}}
	for range batchTurns {
		things = append(things, floor)
	}
	took, err := inTurns(ctx, max(b.Runs/batchTurns, 1), things...)
	if err != nil {
		return finding{}, err
	}
	var bare []time.Duration
	for _, t := range took[1:] {
		bare = append(bare, t...)
	}
	share := median(took[0]) / batchSize
	return finding{
		values: []float64{ratio(share, median(bare))},
		detail: fmt.Sprintf("%.2f ms", milliseconds(share)),
		floor:  fmt.Sprintf("%.2f ms", milliseconds(median(bare))),
	}, nil
}

// measureFiles compares reading and writing a small file with the floor.
func measureFiles(ctx context.Context, b *bench) (finding, error) {
	const name = "kibibyte.txt"
	content := strings.Repeat("0123456789abcde\n", 64)
	write := func(ctx context.Context) error {
		_, err := b.execute(ctx, 0, "write_file", map[string]any{"path": name, "content": content})
		return err
	}
	if err := write(ctx); err != nil {
		return finding{}, err
	}
	took, err := inTurns(ctx, b.Runs, floor, func(ctx context.Context) error {
		r, err := b.execute(ctx, 0, "read_file", map[string]any{"path": name})
		if err == nil && r.Output != content {
			err = fmt.Errorf("read %d bytes, wrote %d", len(r.Output), len(content))
		}
		return err
	}, write)
	if err != nil {
		return finding{}, err
	}
	bare, read, wrote := median(took[0]), median(took[1]), median(took[2])
	return finding{
		values: []float64{ratio(read, bare), ratio(wrote, bare)},
		detail: fmt.Sprintf("%.2f / %.2f ms", milliseconds(read), milliseconds(wrote)),
		floor:  fmt.Sprintf("%.2f ms", milliseconds(bare)),
	}, nil
}
