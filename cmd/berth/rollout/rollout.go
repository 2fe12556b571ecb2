package rollout

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Config says how much is played. A zero Trajectories plays each program once.
type Config struct {
	Trajectories int
	Progress     io.Writer // one line per trajectory that ended; nil for none
}

// Run plays the trajectories, as many at once as the container has slots.
// The error says that nothing could be played; how each trajectory went
// stands in the report.
func Run(ctx context.Context, client Client, cfg Config) (Report, error) {
	programs, err := Programs()
	if err != nil {
		return Report{}, err
	}
	if cfg.Trajectories == 0 {
		cfg.Trajectories = len(programs)
	}
	slots, err := client.Slots(ctx)
	if err != nil {
		return Report{}, err
	}
	start := time.Now()
	free := make(chan string, len(slots))
	for _, id := range slots {
		free <- id
	}
	ended := make(chan Result)
	for i := range cfg.Trajectories {
		// Each of them sends one result; the loop below waits for all.
		go func() {
			t := trajectory{client: client, program: programs[i%len(programs)]}
			t.result = Result{Number: i + 1, Program: t.program.Name, Slot: <-free}
			t.run(ctx)
			free <- t.result.Slot
			ended <- t.result
		}()
	}
	report := Report{Slots: len(slots)}
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
		len(fmt.Sprint(of)), ended, of, r.Number, r.Program, r.Slot, milliseconds(r.Took), verdict)
}
