package operate

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// WithVolume are the names of the machines that have a host volume of the name,
// which is one that KeepConfigs takes, among those on which Nomad may place the
// jobs of the template; those that are down are left out.
func (o *Operator) WithVolume(ctx context.Context, volume string, t jobs.Template) ([]string, error) {
	nodes, _, err := o.client.Nodes().List((&api.QueryOptions{Filter: fmt.Sprintf("%q in HostVolumes", volume)}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var names []string
	for _, n := range nodes {
		pool := t.NodePool == api.NodePoolAll || n.NodePool == t.NodePool || t.NodePool == "" && n.NodePool == api.NodePoolDefault
		center := slices.ContainsFunc(t.Datacenters, func(pattern string) bool { ok, _ := path.Match(pattern, n.Datacenter); return ok })
		if pool && center && n.Status != api.NodeStatusDown {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
