package jobs_test

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"

	"berth/jobs"
)

func TestLastWordsAreOfTheTaskThatFailed(t *testing.T) {
	events := func(all ...*api.TaskEvent) map[string]*api.TaskState {
		return map[string]*api.TaskState{"sandboxd": {Events: all}}
	}
	driver := &api.TaskEvent{Type: api.TaskDriverFailure, Details: map[string]string{"driver_error": "image not found"}}
	after := &api.TaskEvent{Type: api.TaskNotRestarting, DisplayMessage: "Exceeded"}
	assert.Equal(t, "image not found", jobs.LastWords(events(driver, after), "failed"))
	assert.Equal(t, "Exceeded", jobs.LastWords(events(after, &api.TaskEvent{Type: "Killed"}), "failed"), "one that says nothing is not the last")
	assert.Equal(t, "lost", jobs.LastWords(nil, "", "lost"))
	assert.Empty(t, jobs.LastWords(nil))
}
