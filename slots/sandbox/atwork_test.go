package sandbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox"
)

func TestWhoWritesIsEndedAndNotWhatIsBeside(t *testing.T) {
	t.Parallel()
	h := openHost(t, func(c *sandbox.Config) {
		atLevel(slots.LevelNS)(c)
		c.Disk, c.Limits.DiskBytes = sandbox.DiskWatcher, diskBytes
	})
	s := open(t, h, "slot_0")
	x := bashTerminal(t, s)
	for n := range 4 {
		_, _, exit, err := try(s, script("head -c 20M /dev/zero > fill; sleep 300"), 30*time.Second)
		require.NoError(t, err)
		assert.Equal(t, slots.OutcomeDiskLimited, exit.Outcome)
		x.typed(fmt.Sprintf("rm fill; echo an idle terminal goes o''n %d\r", n))
		x.expect(fmt.Sprintf("an idle terminal goes on %d\r\n", n))
	}
	for n := range 5 {
		_, _, exit, err := try(s, script(fmt.Sprintf("head -c 20M /dev/zero > fill%d", n)), 30*time.Second)
		require.NoError(t, err)
		assert.Equal(t, slots.OutcomeDiskLimited, exit.Outcome, "as where there is no terminal")
	}
	x.typed("rm fill*; sleep 1; echo st''ill there\r")
	x.expect("still there\r\n")

	x.typed("head -c 20M /dev/zero > fill; sleep 300\r")
	assert.Equal(t, slots.OutcomeDiskLimited, x.exit().Outcome)
	assert.Equal(t, "tidied\n", output(t, s, "rm fill; sleep 0.5; echo tidied"), "it was not this command that wrote")
}

func TestWhoRanOutOfMemoryIsTold(t *testing.T) {
	t.Parallel()
	h := openHost(t, func(c *sandbox.Config) {
		atLevel(slots.LevelNSCgroup)(c)
		c.Limits.MemoryBytes = 64 << 20
	})
	if got := h.Isolation().Axes[slots.AxisMemory]; got != "cgroup" {
		need.Facility(t, "cgroup", fmt.Errorf("memory is limited by %s", got))
	}
	const hog = `(x=$(head -c 200M /dev/zero | tr '\0' x)); echo hog $?`
	s := open(t, h, "slot_0")
	x, idle := bashTerminal(t, s), bashTerminal(t, s)
	_, _, exit := bash(t, s, hog)
	assert.True(t, exit.OOMKilled, "%+v", exit)
	select {
	case <-idle.read:
		_, err := idle.tty.Wait()
		assert.Equal(t, slots.KindSlotLost, kindOf(t, err))
		_, _, exit = bash(t, s, "kill -9 $$")
		assert.Equal(t, slots.OutcomeSignaled, exit.Outcome, "the next command has its own end")
		return // the kernel ends such a group as a whole
	case <-time.After(time.Second):
	}
	idle.typed("exit\r")
	assert.False(t, idle.exit().OOMKilled, "it was the command's")

	x.typed(hog + "\r")
	x.expect("hog 137\r\n")
	_, _, exit = bash(t, s, "kill -9 $$")
	assert.Equal(t, slots.OutcomeSignaled, exit.Outcome, "it was the terminal's")
	assert.False(t, exit.OOMKilled)
	x.typed("exit\r")
	assert.True(t, x.exit().OOMKilled)
	late := bashTerminal(t, s)
	late.typed("exit\r")
	assert.False(t, late.exit().OOMKilled)
}
