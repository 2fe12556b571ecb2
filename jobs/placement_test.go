package jobs_test

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"

	"berth/jobs"
)

func TestWhyNothingIsPlacedIsSaidAsNomadSaysIt(t *testing.T) {
	for _, c := range []struct {
		name   string
		metric *api.AllocationMetric
		want   string
	}{
		{"nothing is known", nil, `no reason given`},
		{"no machine", &api.AllocationMetric{}, `No nodes were eligible for evaluation`},
		{
			"no machine of the datacenters", &api.AllocationMetric{NodesAvailable: map[string]int{"dc2": 0, "dc1": 0, "dc3": 4}},
			`No nodes were eligible for evaluation, No nodes are available in datacenter "dc1", No nodes are available in datacenter "dc2"`,
		},
		{
			"no driver", &api.AllocationMetric{NodesEvaluated: 3, NodesFiltered: 3, ConstraintFiltered: map[string]int{"missing drivers": 3}},
			`Constraint "missing drivers": 3 nodes excluded by filter`,
		},
		{
			"no memory", &api.AllocationMetric{NodesEvaluated: 1, NodesExhausted: 1, DimensionExhausted: map[string]int{"memory": 1}},
			`Resources exhausted on 1 nodes, Dimension "memory" exhausted on 1 nodes`,
		},
		{"evaluated in vain", &api.AllocationMetric{NodesEvaluated: 2}, `2 nodes evaluated, no reason given`},
		{"all at once", &api.AllocationMetric{
			NodesEvaluated: 9, NodesFiltered: 5, NodesExhausted: 4,
			ClassFiltered:      map[string]int{"large": 2, "gpu": 1},
			ConstraintFiltered: map[string]int{"${attr.kernel.name} = linux": 1, "${attr.cpu.arch} = amd64": 2, "missing drivers": 1},
			ClassExhausted:     map[string]int{"small": 4},
			DimensionExhausted: map[string]int{"memory": 2, "cpu": 1, "network: reserved port collision": 1},
			QuotaExhausted:     []string{"memory", "cpu"},
		}, `Class "gpu": 1 nodes excluded by filter, Class "large": 2 nodes excluded by filter, ` +
			`Constraint "${attr.cpu.arch} = amd64": 2 nodes excluded by filter, Constraint "${attr.kernel.name} = linux": 1 nodes excluded by filter, ` +
			`Constraint "missing drivers": 1 nodes excluded by filter, Resources exhausted on 4 nodes, Class "small" exhausted on 4 nodes, ` +
			`Dimension "cpu" exhausted on 1 nodes, Dimension "memory" exhausted on 2 nodes, Dimension "network: reserved port collision" exhausted on 1 nodes, ` +
			`Quota limit hit "memory", Quota limit hit "cpu"`},
	} {
		for range 20 { // the order of a map is another each time
			assert.Equal(t, c.want, jobs.Unplaced(c.metric), c.name)
		}
	}
}
