package nomad_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/orchestrator/backend/nomad"
	"berth/slots"
)

func TestTheIDOfAContainerIsUsedUpForAWhileAndNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, n := newDoubleWithoutServer(t), &pipes{all: map[string]*pipeListener{}}
		c := nomad.Config{API: d.serveOver(t, n), Job: jobs.Template{Driver: jobs.RawExec}, Pools: []backend.Spec{spec("")}}.Over(n.dial)
		b := open(t, c)
		for _, one := range []string{"c-0", "c-1", "c-2"} {
			start(t, b, one)
			require.NoError(t, b.Stop(t.Context(), one, 0))
		}
		start(t, b, "c-3")
		pause(t.Context(), 50*time.Minute)
		assert.Equal(t, 3, b.Used())
		_, err := b.Start(t.Context(), spec("c-0"))
		assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind, "%v", err)
		require.NoError(t, b.Stop(t.Context(), "c-3", 0))
		pause(t.Context(), 20*time.Minute)
		assert.Equal(t, 1, b.Used(), "those of long ago are forgotten, and that of late is not")
		pause(t.Context(), time.Hour)
		assert.Zero(t, b.Used())
	})
}

// A start that was stopped while its claim was written leaves it behind when
// nobody knows what came of the write.
func TestAnAllocationThatIsClaimedForAContainerThatHasEndedIsNeverTakenForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, n := newDoubleWithoutServer(t), &pipes{all: map[string]*pipeListener{}}
		c := nomad.Config{API: d.serveOver(t, n), Job: jobs.Template{Driver: jobs.RawExec}, Pools: []backend.Spec{spec("")}, Spare: 24 * time.Hour}.Over(n.dial)
		b := open(t, c)
		start(t, b, "c-0")
		require.NoError(t, b.Stop(t.Context(), "c-0", 0))
		start(t, b, "c-1")
		d.do(func() { // an operator starts another one
			d.jobs[job].TaskGroups[0].Count = new(2)
			d.schedule(job)
		})
		require.Eventually(t, func() bool { return d.runs(2) }, patience, time.Second)
		var free string
		d.do(func() {
			for _, a := range d.counted(job) {
				if at(a) == 1 {
					free = a.ID
				}
			}
		})
		_, write := b.Draft("t", jobs.ClaimsPath(job)+free[:1])
		written, err := write(t.Context(), free, "c-0")
		require.NoError(t, err)
		require.True(t, written)
		pause(t.Context(), 3*time.Hour)
		assert.Equal(t, 1, b.Used(), "it is known as long as its claim is")
		all := list(t, b)
		require.Len(t, all, 1)
		assert.Equal(t, "c-1", all[0].ID)
	})
}
