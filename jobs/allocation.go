package jobs

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
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

// LastWords are Nomad's own about how an allocation went: of the task that
// failed, else of the last event, else the first of the descriptions that says
// anything; "": none does.
func LastWords(states map[string]*api.TaskState, descriptions ...string) string {
	failed, last := "", ""
	for _, name := range slices.Sorted(maps.Keys(states)) {
		for _, e := range states[name].Events {
			last = cmp.Or(e.DisplayMessage, e.Details["driver_error"], e.Message, last)
			switch e.Type {
			case api.TaskDriverFailure, api.TaskSetupFailure, api.TaskFailedValidation, api.TaskArtifactDownloadFailed, api.TaskTerminated:
				failed = last
			}
		}
	}
	return cmp.Or(append([]string{failed, last}, descriptions...)...)
}

// InNamespace is what Nomad's own commands are told of the namespace, with a
// blank after it; "" of the default one.
func InNamespace(namespace string) string {
	if namespace == "" || namespace == api.DefaultNamespace {
		return ""
	}
	return "-namespace " + namespace + " "
}

// EndDeployment is the command that ends a deployment. Where the job is rolled
// back by itself, as ours are, the version before it comes back.
func EndDeployment(namespace, id string) string {
	return fmt.Sprintf("nomad deployment fail %s%.8s", InNamespace(namespace), id)
}
