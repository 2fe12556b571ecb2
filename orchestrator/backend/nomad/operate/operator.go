package operate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// Config says which Nomad. Empty fields are those of NOMAD_ADDR,
// NOMAD_NAMESPACE, NOMAD_REGION; the token, TLS and the rest are always those
// of Nomad's own variables.
type Config struct {
	Address   string
	Namespace string
	Region    string
}

// Operator asks one Nomad. Any number may use it at once. Close ends it.
type Operator struct {
	client    *api.Client
	namespace string // of its jobs; "": the default one
}

// Open makes an Operator. It asks nothing yet; the error is of the
// configuration.
func Open(c Config) (*Operator, error) {
	config := api.DefaultConfig()
	config.Address = cmp.Or(c.Address, config.Address)
	config.Namespace = cmp.Or(c.Namespace, config.Namespace)
	config.Region = cmp.Or(c.Region, config.Region)
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("open nomad: %w", err)
	}
	return &Operator{client: client, namespace: config.Namespace}, nil
}

// Close lets go of the connections.
func (o *Operator) Close() { o.client.Close() }

// Progress is told of each step, in a sentence for people.
type Progress func(format string, args ...any)

// unplaced are Nomad's reasons not to place allocations of groups, each as
// Nomad's own commands say it.
func unplaced(groups map[string]*api.AllocationMetric) []string {
	var all []string
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		missing, plural := 1, ""
		if m := groups[group]; m != nil && m.CoalescedFailures > 0 {
			missing, plural = m.CoalescedFailures+1, "s"
		}
		all = append(all, fmt.Sprintf("Task Group %q (failed to place %d allocation%s): %s", group, missing, plural, jobs.Unplaced(groups[group])))
	}
	return all
}
