package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth/sandboxd/api"
)

// stampThenWait prints the time right before its own write, in seconds with
// six digits, and goes on for a while, so that the bytes do not come with the
// result.
const stampThenWait = `echo "$EPOCHREALTIME"; sleep 0.05`

// measureFirstByte takes the time from the write of a process to the arrival
// of what it wrote. Both sides read the same clock.
func measureFirstByte(ctx context.Context, b *bench) (finding, error) {
	var late []time.Duration
	for run := range warmup + b.Runs {
		c, err := call(run%b.slots, "bash", map[string]any{"command": stampThenWait})
		if err != nil {
			return finding{}, err
		}
		took, err := b.firstByte(ctx, c)
		if err != nil {
			return finding{}, err
		}
		if run >= warmup {
			late = append(late, took)
		}
	}
	return finding{
		values: []float64{milliseconds(median(late))},
		detail: fmt.Sprintf("p99 %.2f", milliseconds(percentile(late, 0.99))),
	}, nil
}

// firstByte streams one execution and returns how late its first chunk came.
func (b *bench) firstByte(ctx context.Context, c api.Call) (late time.Duration, err error) {
	late = -1
	for event, err := range b.agent.Stream(ctx, c) {
		arrived := time.Now()
		switch {
		case err != nil:
			return 0, err
		case event.Name == api.EventChunk && late < 0:
			written, err := parseStamp(string(event.Chunk.Bytes()))
			if err != nil {
				return 0, err
			}
			late = arrived.Sub(written)
		case event.Name == api.EventResult:
			if err := errors.Join(event.Result.Err(), succeeded(*event.Result)); err != nil {
				return 0, err
			}
		}
	}
	if late < 0 {
		return 0, errors.New("the stream brought no output")
	}
	return late, nil
}

// parseStamp reads bash's EPOCHREALTIME.
func parseStamp(text string) (time.Time, error) {
	seconds, micros, ok := strings.Cut(strings.TrimSpace(text), ".")
	s, err := strconv.ParseInt(seconds, 10, 64)
	if !ok || len(micros) != 6 || err != nil {
		return time.Time{}, fmt.Errorf("%.40q is no time: this needs bash 5", text)
	}
	us, err := strconv.ParseUint(micros, 10, 32)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40q is no time: %w", text, err)
	}
	return time.Unix(s, int64(us)*1000), nil //nolint:gosec // 32 bits
}
