package bench

import (
	"context"
	"fmt"
	"slices"
)

// outputBytes is what the loud command prints.
const outputBytes = 300_000_000

// measureOutput lets a slot print more than anybody wants to hold in memory
// and takes the difference between what the agent held before and the most
// that it held since it was started.
func measureOutput(ctx context.Context, b *bench) (finding, error) {
	if _, err := b.bash(ctx, 0, "true"); err != nil {
		return finding{}, err
	}
	before, err := readMemory(b.running.PID)
	if err != nil {
		return finding{}, err
	}
	r, err := b.bash(ctx, 0, fmt.Sprintf("yes 'a line of output as long as others are' | head -c %d", outputBytes))
	if err != nil {
		return finding{}, err
	}
	if p := r.Metadata.Receipt; p == nil || p.StdoutBytes != outputBytes {
		return finding{}, fmt.Errorf("the agent did not count %d bytes of output", outputBytes)
	}
	after, err := readMemory(b.running.PID)
	if err != nil {
		return finding{}, err
	}
	return finding{
		values: []float64{mebibytes(after.peak - before.resident)},
		detail: fmt.Sprintf("from %.1f, at its end %.1f; %.0f MB/s", mebibytes(before.resident), mebibytes(after.resident),
			outputBytes/1e3/r.Metadata.DurationMS),
	}, nil
}

// measureIdle reads the memory of a container that has not worked yet. The
// holders are those of the slots and of their spares; the largest counts.
func measureIdle(_ context.Context, b *bench) (finding, error) {
	agent, err := readPSS(b.running.PID)
	if err != nil {
		return finding{}, err
	}
	table, err := readProcesses()
	if err != nil {
		return finding{}, err
	}
	var spawner int64
	var holders []int64
	for _, child := range table.children(b.running.PID) {
		pss, err := readPSS(child)
		if err != nil {
			return finding{}, err
		}
		spawner += pss
		for _, holder := range table.children(child) {
			pss, err := readPSS(holder)
			if err != nil {
				return finding{}, err
			}
			holders = append(holders, pss)
		}
	}
	if len(holders) < b.slots {
		return finding{}, fmt.Errorf("found %d holders of %d slots", len(holders), b.slots)
	}
	return finding{
		values: []float64{mebibytes(agent), mebibytes(slices.Max(holders))},
		detail: fmt.Sprintf("%d holders, spares included, p50 %.2f; spawner %.1f", len(holders), mebibytes(median(holders)), mebibytes(spawner)),
	}, nil
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }
