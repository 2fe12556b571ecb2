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
const resetShare = 15

// manyFiles is what a full workspace holds.
const manyFiles = 10_000

// measureReset compares resets of a full and of an almost empty workspace.
// The slots take turns, so that each has its spare again when its turn comes.
// The two kinds come as few, many, many, few: each follows both kinds equally
// often, and what goes on behind a reset burdens them alike.
func measureReset(ctx context.Context, b *bench) (finding, error) {
	var few, many []time.Duration
	pairs := max(b.Runs/resetShare, 1)
	for step := range 2 * pairs {
		full := (step+step/2+step/b.slots)%2 == 1
		took, err := b.timeReset(ctx, step%b.slots, full)
		if err != nil {
			return finding{}, err
		}
		if full {
			many = append(many, took)
		} else {
			few = append(few, took)
		}
	}
	return finding{
		values: []float64{ratio(median(many), median(few))},
		detail: fmt.Sprintf("%.2f ms vs %.2f ms", milliseconds(median(many)), milliseconds(median(few))),
	}, nil
}

// timeReset fills the slot with files and takes the time of its reset. A slot
// that shall be almost empty is filled as well and emptied again: else its
// reset would come sooner after the one before.
func (b *bench) timeReset(ctx context.Context, slot int, full bool) (time.Duration, error) {
	command := fmt.Sprintf("mkdir many && for ((i = 0; i < %d; i++)); do : > many/$i; done", manyFiles)
	if !full {
		command += " && rm -r many && : > one"
	}
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
