package tooldemo

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"berth/orchestrator/poolapi"
)

// Report is how a demo went: its runs, in their order.
type Report struct{ Rows []Row }

// Row is one run.
type Row struct {
	Tool, Language, What string
	Packages             string // that it needs
	Result               poolapi.ToolResult
	Err                  error // what is wrong with it
}

func (r Row) verdict() string {
	if r.Err != nil {
		return "FAILED: " + r.Err.Error()
	}
	return "passed"
}

// Failures counts the runs that went wrong.
func (r Report) Failures() (n int) {
	for _, row := range r.Rows {
		if row.Err != nil {
			n++
		}
	}
	return n
}

// Write prints the report as a table. Times are the server's: until the
// environment was there, of the run itself, and of the whole request.
func (r Report) Write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "tool\tlanguage\tpackages\tenvironment\trun\ttotal\twhat\toutcome")
	for _, row := range r.Rows {
		t := row.Result.Timings
		outcome := "passed"
		if row.Err != nil {
			outcome = "FAILED"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%.1f ms\t%.1f ms\t%.1f ms\t%s\t%s\n",
			row.Tool, row.Language, cmp.Or(row.Packages, "-"), t.Env, t.Run, t.Total, row.What, outcome)
	}
	return table.Flush()
}
