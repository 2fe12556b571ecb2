package sandbox_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
)

// What a slot gets at below the level at which slots are held apart.
var openWithoutIsolation = []string{"read the neighbour's file by its path", "read the agent's file", "signal the agent", "signal the neighbour"}

func TestTheAttackListIsOpenWhereNothingIsClaimedAndClosedAbove(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("HTTP/1.0 200 OK\r\n\r\n")) // an agent that serves whoever comes
			c.Close()
		}
	}()
	for _, l := range slots.Levels() {
		if l > slots.LevelBasic && reachable(l) != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			h := openHost(t, func(c *sandbox.Config) {
				atLevel(l)(c)
				c.AgentPort = listener.Addr().(*net.TCPAddr).Port
			})
			report := h.Report()
			open := map[string]bool{}
			for _, r := range report.Attacks {
				open[r.Name] = r.Open
			}
			assert.GreaterOrEqual(t, len(open), 14)
			if l == slots.LevelNone {
				for _, name := range openWithoutIsolation {
					assert.True(t, open[name], name)
				}
				assert.True(t, report.Isolation.Unsafe)
				return
			}
			for _, name := range []string{"make a user namespace", "load a bpf program", "trace the agent", "trace the neighbour", "read the agent's memory"} {
				assert.False(t, open[name], name)
			}
			if l < slots.LevelLandlock {
				assert.True(t, open["read the neighbour's file by its path"], "no axis may claim otherwise")
				assert.Empty(t, report.Isolation.Axes[slots.AxisFS])
				return
			}
			assert.Equal(t, l, report.Isolation.Level)
			assert.False(t, report.Isolation.Unsafe)
			for _, r := range report.Attacks {
				if report.Facts.LandlockABI >= 6 {
					assert.False(t, r.Open, "%s: %s", r.Name, r.Note)
				}
			}
		})
	}
}

func TestARequirementThatTheMachineCannotMeetNamesTheShortfall(t *testing.T) {
	c := config(t)
	atLevel(slots.LevelLandlock)(&c)
	want, err := slots.ParseRequirement("ns,net=loopback-only")
	require.NoError(t, err)
	c.Require = want
	fds := descriptors(t)
	_, err = sandbox.Open(t.Context(), c)
	var unmet *sandbox.UnmetError
	require.ErrorAs(t, err, &unmet)
	assert.Equal(t, slots.LevelLandlock, unmet.Got.Level)
	assert.NotEmpty(t, unmet.Shortfall)
	assert.Contains(t, err.Error(), "wanted mntns")
	assert.Contains(t, err.Error(), "wanted loopback-only")
	assert.LessOrEqual(t, descriptors(t), fds, "nothing is left open")
	c.DataDir = "relative"
	_, err = sandbox.Open(t.Context(), c)
	assert.ErrorContains(t, err, "not absolute")
}
