package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"regexp"
	"runtime"
	"time"

	"berth/cmd/berth/container"
	"berth/sandboxd/client"
	"berth/slots"
)

// Config says what to measure. Zero fields have the defaults of the bars.
type Config struct {
	Binary     string         // the sandboxd to measure
	Args       []string       // more flags of "sandboxd serve"
	Runs       int            // that each p50 is of, where a run is short; default 300
	Executions int            // in a row, for the count of what is leaked; default 50 000
	Starts     int            // that the time to ready is the p50 of; default 10
	Only       *regexp.Regexp // names the rows to measure; nil: all
	Progress   io.Writer      // is told what is measured next; nil: nobody
}

func (c Config) withDefaults() Config {
	if c.Runs <= 0 {
		c.Runs = 300
	}
	if c.Executions <= 0 {
		c.Executions = 50_000
	}
	if c.Starts <= 0 {
		c.Starts = 10
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	return c
}

// measurement is how one row comes about.
type measurement struct {
	bar
	slots   int  // of the container that it wants; 0: none
	fresh   bool // that has not worked yet
	measure func(ctx context.Context, b *bench) (finding, error)
}

// measurements lists the rows of the table.
func measurements() []measurement {
	const mib = " MiB"
	at := func(v ...float64) []float64 { return v }
	return []measurement{
		{bar{"bash -c true by POST /execute, level ns or better, one at a time", " × floor", false, at(1.5), at(1.15)}, 16, false, measureSingle},
		{bar{"the same, 32 at once on 32 slots: executions per second", " × floor", true, at(0.8), at(1.1)}, 32, false, measureParallel},
		{bar{"batch of 64 × true over 16 slots, per execution", " × floor", false, at(0.8), at(0.6)}, 16, false, measureBatch},
		{bar{"first byte of streamed output after the process wrote it, p50", " ms", false, at(3), at(1)}, 16, false, measureFirstByte},
		{bar{"reset after 10 000 files vs after 1 file", " ×", false, at(2), nil}, 16, false, measureReset},
		{bar{"read_file / write_file of 1 KiB", " × floor", false, at(0.5, 0.5), at(0.2, 0.2)}, 16, false, measureFiles},
		{bar{"300 MB of stdout: growth of sandboxd's memory", mib, false, at(32), at(8)}, 16, true, measureOutput},
		{bar{"idle memory with 16 slots: sandboxd / each holder (PSS)", mib, false, at(25, 4), at(15, 1.5)}, 16, true, measureIdle},
		{bar{"static binary, stripped", mib, false, at(15), at(10)}, 0, false, measureBinary},
		{bar{"start to ready with 16 slots, p50", " ms", false, at(300), at(100)}, 0, false, measureStart},
		{bar{"executions in a row: zombies / leaked descriptors / goroutine growth", "", false, at(0, 0, 0), nil}, 32, false, measureEndurance},
	}
}

// bench is one run: the configuration, and the container in use.
type bench struct {
	Config
	running *container.Container
	agent   *client.Client // of running
	slots   int            // of running
	level   slots.Level    // of the last container
}

// Run measures and writes the table to out. The error says that a row could
// not be measured for another reason than missing permissions, or that a
// container did not end well; the table is written all the same.
func Run(ctx context.Context, config Config, out io.Writer) error {
	b := &bench{Config: config.withDefaults()}
	var rows []row
	var errs []error
	for _, m := range measurements() {
		if b.Only != nil && !b.Only.MatchString(m.what) {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		r := row{bar: m.bar}
		begun := time.Now()
		fmt.Fprintf(b.Progress, "measuring %s", m.what)
		if r.err = b.provide(ctx, m); r.err == nil {
			r.finding, r.err = m.measure(ctx, b)
		}
		fmt.Fprintf(b.Progress, " (%.1f s)\n", time.Since(begun).Seconds())
		if r.err != nil && !errors.Is(r.err, fs.ErrPermission) {
			errs = append(errs, fmt.Errorf("measure %s: %w", m.what, r.err))
		}
		rows = append(rows, r)
	}
	errs = append(errs, b.stop(), context.Cause(ctx))
	fmt.Fprintf(out, "isolation %s, %d CPUs, p50 of %d runs, %d executions in a row\n\n", b.level, runtime.NumCPU(), b.Runs, b.Executions)
	errs = append(errs, writeTable(out, rows))
	return errors.Join(errs...)
}

// provide starts the container that the measurement wants, unless it runs.
func (b *bench) provide(ctx context.Context, m measurement) error {
	if m.slots == 0 || b.running != nil && b.slots == m.slots && !m.fresh {
		return nil
	}
	if err := b.stop(); err != nil {
		return err
	}
	c, err := b.start(ctx, m.slots)
	if err != nil {
		return err
	}
	b.running, b.slots = c, m.slots
	b.agent, err = client.New(client.Config{URL: c.URL, Token: c.Token, Retries: -1})
	if err != nil {
		return err
	}
	health, err := b.agent.Health(ctx)
	if err != nil {
		return err
	}
	b.level = health.Isolation.Level
	return b.settle(ctx)
}

// start starts a container, whoever uses it.
func (b *bench) start(ctx context.Context, n int) (*container.Container, error) {
	return container.Start(ctx, container.Config{Binary: b.Binary, Slots: n, Args: b.Args})
}

// stop ends the container, if one runs.
func (b *bench) stop() error {
	if b.running == nil {
		return nil
	}
	if b.agent != nil {
		b.agent.Close()
	}
	// The readiness was asked for by the default client.
	http.DefaultClient.CloseIdleConnections()
	err := b.running.Close()
	b.running, b.agent = nil, nil
	return err
}
