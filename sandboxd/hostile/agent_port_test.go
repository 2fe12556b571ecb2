package hostile_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/client"
	"berth/slots"
)

// TestHostilePort has a slot serve on the port of an agent that listens on one
// address alone, where clients that know it by another name would ask.
func TestHostilePort(t *testing.T) {
	program := attackProgram(t)
	for _, set := range settings(t) {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			a := agenttest.Start(t, agenttest.Options{Level: set.level, UID: set.uid, Slots: 1})
			_, err := a.PutFile(t.Context(), client.Place{SlotID: "slot_0", Path: "attacker"}, bytes.NewReader(program), client.PutOptions{Length: int64(len(program)), Mode: 0o755})
			require.NoError(t, err)
			health, err := a.Health(t.Context())
			require.NoError(t, err)
			told := mustJSON(t, targets{AgentPort: a.Port})
			closed := []string{"A12.hijack"}
			if set.level == slots.LevelLandlock && health.Isolation.Axes[slots.AxisNet] == "host-minus-agent-port" {
				// By Landlock's rules, which the kernel has for both or for none.
				closed = append(closed, "A12.beside")
			}
			for _, probe := range closed {
				r := a.Bash(t, "slot_0", "./attacker run '"+told+"' "+probe, 60)
				assert.Contains(t, r.Output, `"open":false`, probe)
			}
		})
	}
}
