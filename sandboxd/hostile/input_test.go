package hostile_test

import (
	"testing"
	"time"

	"berth/sandboxd/agenttest"
)

func TestInputX(t *testing.T) {
	for _, level := range agenttest.Levels(t) {
		s := time.Now()
		t.Run(level.String(), func(t *testing.T) {
			a := agenttest.Start(t, agenttest.Options{Level: level, Slots: 2})
			t.Log("started", time.Since(s))
			r := a.Bash(t, "slot_0", "echo hi", 5)
			t.Log(r.Output, time.Since(s))
			s = time.Now()
		})
		t.Log("stopped", time.Since(s))
	}
}
