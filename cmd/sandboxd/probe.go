package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"berth/sandboxd"
	"berth/slots"
	"berth/slots/sandbox"
)

// runProbe prints what isolation an agent would reach here.
func runProbe(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	asJSON := slices.Contains(args, "--json")
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "--json" })
	config, err := sandboxd.Parse(args, environ, stdout)
	if errors.Is(err, sandboxd.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "sandboxd probe: %v\n", err)
		return exitUsage
	}
	report, err := sandboxd.Probe(ctx, config)
	if err != nil {
		fmt.Fprintf(stderr, "sandboxd probe: %v\n", err)
		if _, unmet := errors.AsType[*sandbox.UnmetError](err); unmet {
			return exitUnmet
		}
		return exitFailed
	}
	if asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(report)
	} else {
		err = printReport(stdout, report)
	}
	if err != nil {
		fmt.Fprintf(stderr, "sandboxd probe: %v\n", err)
		return exitFailed
	}
	return exitOK
}

func printReport(out io.Writer, r sandboxd.Report) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "level\t%s\n", r.Isolation.Level)
	fmt.Fprintf(w, "mechanism\t%s\n", r.Mechanism)
	fmt.Fprintf(w, "kernel\t%s, %s, uid %d, Landlock ABI %d\n", r.Facts.Kernel, r.Facts.Arch, r.Facts.UID, r.Facts.LandlockABI)
	fmt.Fprintf(w, "cgroup\t%s\n", r.Cgroup)
	fmt.Fprintf(w, "disk\t%s\n", r.Disk)
	fmt.Fprintf(w, "\naxis\tin force\tof\n")
	for _, axis := range slots.AxisNames() {
		values := slots.AxisValues(axis)
		value := r.Isolation.Axes[axis]
		if value == "" {
			value = values[0]
		}
		fmt.Fprintf(w, "%s\t%s\t%v\n", axis, value, values)
	}
	fmt.Fprintf(w, "\nattack\tresult\n")
	for _, a := range r.Attacks {
		result := "refused"
		if a.Open {
			result = "OPEN"
		}
		fmt.Fprintf(w, "%s\t%s: %s\n", a.Name, result, a.Note)
	}
	for _, weak := range r.Isolation.Weak {
		fmt.Fprintf(w, "\nweakness\t%s\n", weak)
	}
	for _, t := range r.Attempts {
		if t.Error == "" {
			continue
		}
		fmt.Fprintf(w, "\nnot available\t%s\n\t%s\n", t.Mechanism, t.Error)
		if t.Mend != "" {
			fmt.Fprintf(w, "mend\t%s\n", t.Mend)
		}
	}
	if r.Refusal != "" {
		fmt.Fprintf(w, "\nserve would refuse\t%s\n", r.Refusal)
	}
	return w.Flush()
}
