package operate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Plan is what registering a job would do.
type Plan struct {
	Job         string                       `json:"job"`
	Change      string                       `json:"change"`           // None, Added, Edited, Deleted: of the job's specification
	ModifyIndex uint64                       `json:"job_modify_index"` // that it was held against; 0: there is no such job
	Updates     map[string]map[string]uint64 `json:"updates"`          // allocations by group and by what happens to them; zeros are left out
	Unplaced    []string                     `json:"unplaced"`         // why there is no room, in Nomad's words
	Warnings    string                       `json:"warnings"`
	Diff        *api.JobDiff                 `json:"diff"`
}

// Plan asks what registering the job would do. Nothing is changed. The error
// has Nomad's own words when the job is refused.
func (o *Operator) Plan(ctx context.Context, job *api.Job) (Plan, error) {
	answer, _, err := o.client.Jobs().PlanOpts(job, &api.PlanOptions{Diff: true}, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return Plan{}, fmt.Errorf("plan job %s: %w", *job.ID, err)
	}
	p := Plan{
		Job: *job.ID, Change: "None", ModifyIndex: answer.JobModifyIndex, Updates: map[string]map[string]uint64{},
		Unplaced: unplaced(answer.FailedTGAllocs), Warnings: answer.Warnings, Diff: answer.Diff,
	}
	if answer.Diff != nil {
		p.Change = answer.Diff.Type
	}
	if answer.Annotations == nil {
		return p, nil
	}
	for group, n := range answer.Annotations.DesiredTGUpdates {
		all := map[string]uint64{
			"create": n.Place, "stop": n.Stop, "migrate": n.Migrate, inPlace: n.InPlaceUpdate,
			"create/destroy update": n.DestructiveUpdate, "canary": n.Canary,
		}
		maps.DeleteFunc(all, func(_ string, n uint64) bool { return n == 0 })
		if len(all) > 0 {
			p.Updates[group] = all
		}
	}
	return p, nil
}

// Changes reports whether the specification would be another, or allocations
// be created or stopped. One that is noted to have a later version of the same
// specification is neither.
func (p Plan) Changes() bool {
	for _, updates := range p.Updates {
		for what := range updates {
			if what != inPlace {
				return true
			}
		}
	}
	return p.Change != "None"
}

const inPlace = "in-place update"

// signs of what happens to a part of a job.
var signs = map[string]string{"Added": "+ ", "Deleted": "- ", "Edited": "+/- "}

// Write writes the plan for people, as Nomad's own command does.
func (p Plan) Write(out io.Writer) error {
	w := &diffWriter{out: out}
	if p.Diff != nil {
		w.line(0, p.Diff.Type, fmt.Sprintf("Job: %q", p.Job))
		w.fields(0, p.Diff.Fields, p.Diff.Objects)
		for _, group := range p.Diff.TaskGroups {
			w.line(0, group.Type, fmt.Sprintf("Task group: %q%s", group.Name, updates(p.Updates[group.Name])))
			w.fields(1, group.Fields, group.Objects)
			for _, task := range group.Tasks {
				if task.Type != "None" {
					w.line(1, task.Type, fmt.Sprintf("Task: %q%s", task.Name, annotations(task.Annotations)))
					w.fields(2, task.Fields, task.Objects)
				}
			}
		}
	}
	w.text("\n")
	if len(p.Unplaced) == 0 {
		w.text("All tasks can be placed.\n")
	}
	for _, why := range p.Unplaced {
		w.text("NOT to be placed: " + why + "\n")
	}
	if p.Warnings != "" {
		w.text("Warnings: " + strings.TrimSpace(p.Warnings) + "\n")
	}
	if !p.Changes() {
		w.text("No changes.\n")
	}
	return w.err
}

func updates(of map[string]uint64) string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("%d %s", of[what], what))
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

func annotations(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

// diffWriter writes differences, and keeps its first error.
type diffWriter struct {
	out io.Writer
	err error
}

func (w *diffWriter) text(s string) {
	if w.err == nil {
		_, w.err = io.WriteString(w.out, s)
	}
}

func (w *diffWriter) line(depth int, kind, text string) {
	w.text(strings.Repeat("  ", depth) + signs[kind] + text + "\n")
}

// fields writes what differs among the fields, then the objects.
func (w *diffWriter) fields(depth int, fields []*api.FieldDiff, objects []*api.ObjectDiff) {
	for _, f := range fields {
		switch f.Type {
		case "Added":
			w.line(depth+1, f.Type, fmt.Sprintf("%s: %q%s", f.Name, f.New, annotations(f.Annotations)))
		case "Deleted":
			w.line(depth+1, f.Type, fmt.Sprintf("%s: %q%s", f.Name, f.Old, annotations(f.Annotations)))
		case "Edited":
			w.line(depth+1, f.Type, fmt.Sprintf("%s: %q => %q%s", f.Name, f.Old, f.New, annotations(f.Annotations)))
		}
	}
	for _, o := range objects {
		if o.Type != "None" {
			w.line(depth+1, o.Type, o.Name+" {")
			w.fields(depth+1, o.Fields, o.Objects)
			w.line(depth+1, "", "}")
		}
	}
}
