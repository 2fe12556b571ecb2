package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// resetShare is how many short runs stand for one reset: making its files
// takes long.
const resetShare = 10

// measureReset compares resets of a full and of an almost empty workspace.
// The slots take turns, so that each has its spare again when its turn comes,
// and each is full in one turn and almost empty in the next.
func measureReset(ctx context.Context, b *bench) (finding, error) {
	var few, many []time.Duration
	pairs := max(b.Runs/resetShare, 1)
	for step := range 2 * pairs {
		slot, files, times := step%b.slots, 1, &few
		if (step+step/b.slots)%2 == 1 {
			files, times = 10_000, &many
		}
		took, err := b.timeReset(ctx, slot, files)
		if err != nil {
			return finding{}, err
		}
		*times = append(*times, took)
	}
	return finding{
		values: []float64{ratio(median(many), median(few))},
		detail: fmt.Sprintf("%.2f ms vs %.2f ms", milliseconds(median(many)), milliseconds(median(few))),
	}, nil
}

// timeReset fills the slot with files and takes the time of its reset.
func (b *bench) timeReset(ctx context.Context, slot, files int) (time.Duration, error) {
	command := fmt.Sprintf("for ((i = 0; i < %d; i++)); do echo $i > file$i; done", files)
	if _, err := b.bash(ctx, slot, command); err != nil {
		return 0, err
	}
	begun := time.Now()
	receipt, err := b.agent.Reset(ctx, "slot_"+strconv.Itoa(slot), nil)
	took := time.Since(begun)
	if err == nil && !receipt.Clean {
		err = errors.New("the slot was not proven clean")
	}
	return took, err
}
