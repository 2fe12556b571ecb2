package rollout

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is how a rollout went.
type Report struct {
	Results []Result // in the order in which they ended
	Slots   int
	Took    time.Duration
}

// Failures counts the trajectories that went wrong.
func (r Report) Failures() int {
	var n int
	for _, result := range r.Results {
		if result.Err != nil {
			n++
		}
	}
	return n
}

// Write prints the report as a table. The latencies are those of single
// POST /execute requests as their client saw them.
func (r Report) Write(w io.Writer) error {
	var latencies []time.Duration
	var executions int
	for _, result := range r.Results {
		latencies = append(latencies, result.Latencies...)
		executions += result.Executions
	}
	slices.Sort(latencies)
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "trajectories\tslots\texecutions\tp50\tp99\ttotal\tfailures")
	fmt.Fprintf(table, "%d\t%d\t%d\t%s\t%s\t%s\t%d\n", len(r.Results), r.Slots, executions,
		milliseconds(quantile(latencies, 50)), milliseconds(quantile(latencies, 99)), milliseconds(r.Took), r.Failures())
	return table.Flush()
}

// quantile is the smallest of the sorted values that percent of them do not
// exceed; 0 of none.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*percent + 99) / 100
	return sorted[max(rank, 1)-1]
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// changed counts the lines of a unified diff that go and come.
func changed(diff string) string {
	var gone, come int
	for line := range strings.Lines(diff) {
		switch {
		case strings.HasPrefix(line, "---"), strings.HasPrefix(line, "+++"):
		case strings.HasPrefix(line, "-"):
			gone++
		case strings.HasPrefix(line, "+"):
			come++
		}
	}
	return fmt.Sprintf("diff -%d +%d", gone, come)
}
