package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// failures are what Nomad says of the allocations of this version that failed,
// and what their programs have said last.
func (o *Operator) failures(ctx context.Context, d *Deployed) []string {
	all, _, err := o.client.Jobs().Allocations(d.Job, false, new(api.QueryOptions).WithContext(ctx))
	if err != nil {
		return []string{err.Error()}
	}
	var words []string
	for _, a := range all {
		unhealthy := a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && !*a.DeploymentStatus.Healthy
		if a.JobVersion == d.Version && (unhealthy || a.ClientStatus == api.AllocClientStatusFailed) {
			words = append(words, fmt.Sprintf("allocation %.8s on %s: %s", a.ID, a.NodeName, jobs.LastWords(a.TaskStates, a.ClientDescription, a.DesiredDescription)+o.itsLog(ctx, a)))
		}
	}
	return words
}

// itsLog is what a program has said last that ended by itself and not well, and
// how to see the rest; "": none did.
func (o *Operator) itsLog(ctx context.Context, a *api.AllocationListStub) string {
	for task, state := range a.TaskStates {
		for _, e := range state.Events {
			if status := e.Details["exit_code"]; status == "" || status == "0" {
				continue
			}
			why := fmt.Sprintf("nomad alloc logs -stderr %s%.8s", jobs.InNamespace(a.Namespace), a.ID)
			if last := o.lastLine(ctx, a.ID, task); last != "" {
				return fmt.Sprintf(" (it said last: %s; more: %s)", last, why)
			}
			return fmt.Sprintf(" (why: %s)", why)
		}
	}
	return ""
}

// Bytes of the end of a log that are read, and of a line that are shown.
const (
	endOfLog  = 4096
	partShown = 1000
)

// lastLine is the last line that a task has written on its standard error. ""
// is none that can be read: the token may not, or its machine does not answer.
func (o *Operator) lastLine(ctx context.Context, allocation, task string) string {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	q := url.Values{"task": {task}, "type": {"stderr"}, "plain": {"true"}, "origin": {"end"}, "offset": {strconv.Itoa(endOfLog)}}
	body, err := o.client.Raw().Response("/v1/client/fs/logs/"+allocation+"?"+q.Encode(), new(api.QueryOptions).WithContext(ctx))
	if err != nil {
		return ""
	}
	defer func() { _ = body.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(body, 2*endOfLog))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := lines[len(lines)-1]
	var entry struct { // as our programs log
		Message string `json:"@message"`
		Error   string `json:"error"`
	}
	if json.Unmarshal([]byte(last), &entry) == nil && entry.Error != "" {
		last = entry.Message + ": " + entry.Error
	}
	if len(last) > partShown {
		last = strings.ToValidUTF8(last[:partShown], "") + "…"
	}
	return last
}
