package keeper

import (
	"time"

	"berth/sandboxd/api"
)

// unknownTool stands for every tool name that there is no tool for, so that
// callers cannot make counters.
const unknownTool = "unknown"

// Observer is told what has happened, for metrics. Its methods must not block,
// must not change what they are given, and may be called at once.
type Observer interface {
	// ExecutionEnded tells of a call that was answered, under the name of its
	// tool or "unknown". Joined and replayed ones are not told again.
	ExecutionEnded(tool string, r *api.Result)
	ResetEnded(clean bool, took time.Duration)
}

// unobserved is the Observer of a keeper that was given none.
type unobserved struct{}

func (unobserved) ExecutionEnded(string, *api.Result) {}
func (unobserved) ResetEnded(bool, time.Duration)     {}
