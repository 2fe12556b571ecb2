package jobs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Unplaced are Nomad's reasons not to place an allocation: the lines that its
// own commands print, in their words and order, of each kind by name, with
// commas between them. It is never "".
//
// Source: formatAllocMetrics of command/monitor.go in Nomad.
func Unplaced(m *api.AllocationMetric) string {
	if m == nil {
		return "no reason given"
	}
	var all []string
	each := func(counts map[string]int, format string) {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			all = append(all, fmt.Sprintf(format, name, counts[name]))
		}
	}
	if m.NodesEvaluated == 0 {
		all = append(all, "No nodes were eligible for evaluation")
	}
	for _, dc := range slices.Sorted(maps.Keys(m.NodesAvailable)) {
		if m.NodesAvailable[dc] == 0 {
			all = append(all, fmt.Sprintf("No nodes are available in datacenter %q", dc))
		}
	}
	each(m.ClassFiltered, "Class %q: %d nodes excluded by filter")
	each(m.ConstraintFiltered, "Constraint %q: %d nodes excluded by filter")
	if m.NodesExhausted > 0 {
		all = append(all, fmt.Sprintf("Resources exhausted on %d nodes", m.NodesExhausted))
	}
	each(m.ClassExhausted, "Class %q exhausted on %d nodes")
	each(m.DimensionExhausted, "Dimension %q exhausted on %d nodes")
	for _, dimension := range m.QuotaExhausted {
		all = append(all, fmt.Sprintf("Quota limit hit %q", dimension))
	}
	if len(all) == 0 {
		return fmt.Sprintf("%d nodes evaluated, no reason given", m.NodesEvaluated)
	}
	return strings.Join(all, ", ")
}
