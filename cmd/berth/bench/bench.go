package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"

	"berth/cmd/berth/container"
	"berth/sandboxd/client"
	"berth/slots"
)

// Config says what to measure. Zero fields have the defaults of the bars.
type Config struct {
	Binary       string         // the sandboxd to measure
	Args         []string       // more flags of "sandboxd serve"
	Orchestrator string         // that keeps the pool to measure; "": no row of it can be measured
	Runs         int            // that each p50 is of, where a run is short; default 300
	Executions   int            // in a row, for the count of what is leaked; default 50 000
	Starts       int            // that the time to ready is the p50 of; default 10
	Only         *regexp.Regexp // names the rows to measure; nil: all
	Progress     io.Writer      // is told what is measured next; nil: nobody
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
	slots   int      // of the container that it wants; 0: none
	pool    poolKind // that it wants instead
	fresh   bool     // that has not worked yet
	measure func(ctx context.Context, b *bench) (finding, error)
}

// measurements lists the rows of the table.
func measurements() []measurement {
	const mib = " MiB"
	at := func(v ...float64) []float64 { return v }
	return []measurement{
		{bar: bar{"bash -c true by POST /execute, level ns or better, one at a time", " × floor", false, at(1.5), at(1.15)}, slots: 16, measure: measureSingle},
		{bar: bar{"the same, 32 at once on 32 slots: executions per second", " × floor", true, at(0.8), at(1.1)}, slots: 32, measure: measureParallel},
		{bar: bar{"batch of 64 × true over 16 slots, per execution", " × floor", false, at(0.8), at(0.6)}, slots: 16, measure: measureBatch},
		{bar: bar{"first byte of streamed output after the process wrote it, p50", " ms", false, at(3), at(1)}, slots: 16, measure: measureFirstByte},
		// What the resets delete keeps the disk busy for a while: the files come first.
		{bar: bar{"read_file / write_file of 1 KiB", " × floor", false, at(0.5, 0.5), at(0.2, 0.2)}, slots: 16, measure: measureFiles},
		{bar: bar{"reset after 10 000 files vs after 1 file", " ×", false, at(2), nil}, slots: 16, measure: measureReset},
		{bar: bar{"300 MB of stdout: growth of sandboxd's memory", mib, false, at(32), at(8)}, slots: 16, fresh: true, measure: measureOutput},
		{bar: bar{"idle memory with 16 slots: sandboxd / each holder (PSS)", mib, false, at(25, 4), at(15, 1.5)}, slots: 16, fresh: true, measure: measureIdle},
		{bar: bar{"static binary, stripped", mib, false, at(15), at(10)}, measure: measureBinary},
		{bar: bar{"start to ready with 16 slots, p50", " ms", false, at(300), at(100)}, measure: measureStart},
		{bar: bar{"executions in a row: zombies / leaked descriptors / goroutine growth", "", false, at(0, 0, 0), nil}, slots: 32, measure: measureEndurance},
	}
}

// bench is one run: the configuration, and the container in use.
type bench struct {
	Config
	running *container.Container
	agent   *client.Client // of running
	slots   int            // of running
	pool    *pool          // nil: it does not run
	level   slots.Level    // of the last container
}

// Run measures and writes the tables to out: that of a container, that of
// function tools and that of a pool, those that have rows. The error says that a
// row could not be measured for another reason than missing permissions or
// programs, or that a process did not end well; the tables are written all the
// same.
func Run(ctx context.Context, config Config, out io.Writer) error {
	b := &bench{Config: config.withDefaults()}
	tables := []struct {
		title string
		of    []measurement
	}{
		{"", measurements()},
		{fmt.Sprintf("\nfunction tools; those by POST /v1/tools/run on a pool of one container with %d slots\n", toolSlots), append(functionMeasurements(), toolMeasurements()...)},
		{fmt.Sprintf("\na pool of %d containers with %d slots each, through its orchestrator\n", poolContainers, poolSlots), poolMeasurements()},
	}
	var errs []error
	var text strings.Builder
	for _, table := range tables {
		rows, err := b.rows(ctx, table.of)
		errs = append(errs, err)
		if len(rows) > 0 {
			fmt.Fprintln(&text, table.title)
			errs = append(errs, writeTable(&text, rows))
		}
	}
	errs = append(errs, b.stop(), context.Cause(ctx))
	if text.Len() == 0 {
		errs = append(errs, writeTable(&text, nil))
	}
	fmt.Fprintf(out, "isolation %s, %d CPUs, p50 of %d runs, %d executions in a row\n%s", b.level, runtime.NumCPU(), b.Runs, b.Executions, text.String())
	return errors.Join(errs...)
}

// rows measures those rows that are asked for, until ctx ends.
func (b *bench) rows(ctx context.Context, of []measurement) (rows []row, err error) {
	var errs []error
	for _, m := range of {
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
		if r.err != nil && !errors.Is(r.err, fs.ErrPermission) && !errors.Is(r.err, exec.ErrNotFound) {
			errs = append(errs, fmt.Errorf("measure %s: %w", m.what, r.err))
		}
		rows = append(rows, r)
	}
	return rows, errors.Join(errs...)
}

// provide starts the container that the measurement wants, or the pool, unless
// it runs.
func (b *bench) provide(ctx context.Context, m measurement) error {
	if m.pool != noPool {
		return b.providePool(ctx, m.pool)
	}
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

// stop ends what runs.
func (b *bench) stop() error {
	if b.pool != nil {
		http.DefaultClient.CloseIdleConnections()
		err := b.pool.close()
		b.pool = nil
		return err
	}
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
