package bench

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"time"
)

// measureStart starts containers and takes the time until each is ready.
func measureStart(ctx context.Context, b *bench) (finding, error) {
	const slots = 16
	var took []time.Duration
	for range b.Starts {
		c, err := b.start(ctx, slots)
		if err != nil {
			return finding{}, err
		}
		took = append(took, c.Startup)
		if err := c.Close(); err != nil {
			return finding{}, err
		}
	}
	return finding{
		values: []float64{milliseconds(median(took))},
		detail: fmt.Sprintf("of %d starts, worst %.0f", b.Starts, milliseconds(percentile(took, 1))),
	}, nil
}

// measureBinary looks at the binary itself.
func measureBinary(_ context.Context, b *bench) (finding, error) {
	stat, err := os.Stat(b.Binary)
	if err != nil {
		return finding{}, fmt.Errorf("look at binary: %w", err)
	}
	if err := staticAndStripped(b.Binary); err != nil {
		return finding{}, err
	}
	return finding{values: []float64{mebibytes(stat.Size())}}, nil
}

// staticAndStripped says what of the two a binary is not.
func staticAndStripped(name string) error {
	f, err := elf.Open(name)
	if err != nil {
		return fmt.Errorf("open binary: %w", err)
	}
	defer func() { _ = f.Close() }() // it was read only
	for _, part := range f.Progs {
		if part.Type == elf.PT_INTERP {
			return errors.New("the binary is not static")
		}
	}
	if f.Section(".symtab") != nil {
		return errors.New("the binary is not stripped: build it by make build")
	}
	return nil
}
