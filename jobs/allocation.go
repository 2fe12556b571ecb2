package jobs

import (
	"net"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// AllocationIndex reads the index from an allocation's name, like
// job.group[3]; -1: there is none.
func AllocationIndex(name string) int {
	_, after, ok := strings.Cut(name, "[")
	n, err := strconv.Atoi(strings.TrimSuffix(after, "]"))
	if !ok || err != nil {
		return -1
	}
	return n
}

// AllocationURL is where the task that listens on Port is reached, from the
// allocation's ports; "": it has none yet.
func AllocationURL(r *api.AllocatedResources) string {
	if r == nil {
		return ""
	}
	for _, p := range r.Shared.Ports {
		if p.Label == Port {
			return "http://" + net.JoinHostPort(p.HostIP, strconv.Itoa(p.Value))
		}
	}
	return ""
}
