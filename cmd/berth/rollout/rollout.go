package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Config says how much is played. A zero Trajectories plays each program once.
type Config struct {
	Trajectories int
	Progress     io.Writer // one line per trajectory that ended; nil for none
}

// Run plays the trajectories, as many at once as the target has slots. The
// error says that nothing could be played; how each trajectory went stands in
// the report.
func Run(ctx context.Context, on Target, cfg Config) (Report, error) {
	programs, err := Programs()
	if err != nil {
		return Report{}, err
	}
	if cfg.Trajectories == 0 {
		cfg.Trajectories = len(programs)
	}
	slots, take, err := on.prepare(ctx)
	if err != nil {
		return Report{}, err
	}
	start := time.Now()
	ended := make(chan Result)
	for i := range cfg.Trajectories {
		// Each of them sends one result; the loop below waits for all.
		go func() {
			t := trajectory{program: programs[i%len(programs)]}
			t.result = Result{Number: i + 1, Program: t.program.Name}
			if t.place, t.result.Err = take(ctx, i+1); t.result.Err == nil {
				t.result.Slot = t.place.name()
				t.run(ctx)
				if err := t.place.leave(ctx); err != nil {
					t.result.Err = errors.Join(t.result.Err, err)
				}
			}
			ended <- t.result
		}()
	}
	report := Report{Slots: slots}
	for range cfg.Trajectories {
		r := <-ended
		report.Results = append(report.Results, r)
		if cfg.Progress != nil {
			progress(cfg.Progress, len(report.Results), cfg.Trajectories, r)
		}
	}
	report.Took = time.Since(start)
	return report, nil
}

func progress(w io.Writer, ended, of int, r Result) {
	verdict := "mended, " + changed(r.Diff)
	if r.Err != nil {
		verdict = "FAILED: " + r.Err.Error()
	}
	fmt.Fprintf(w, "[%*d/%d] trajectory %d, %s on %s, %s: %s\n",
		len(fmt.Sprint(of)), ended, of, r.Number, r.Program, cmp.Or(r.Slot, "no slot"), milliseconds(r.Took), verdict)
}
