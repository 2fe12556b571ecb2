package holder

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// The margins are by how much the kernel prefers to kill commands. With a
// slot's memory used up by many small processes the holder would be the largest
// one, and take all of the slot along; the next largest is the shell.
//
// A point is a thousandth of the memory that ran out: with a small limit the
// same margin weighs less than the holder does. It is no larger than it has to
// be, for what the slot starts may lower its own score as far as the holder's,
// and other slots' commands go first then when the machine's memory runs out.
const (
	keptOOMMargin        = 50
	leastOOMMargin       = 100
	mostOOMMargin        = 800 // the agent, at 0, stays the last to go
	holderRoom     int64 = 32 << 20
)

// holderOOMMargin is the holder's margin in a slot that may use so many bytes
// of memory; 0: without a limit of its own.
func holderOOMMargin(memory int64) int {
	if memory <= 0 {
		return leastOOMMargin
	}
	need := (1000*holderRoom + memory - 1) / memory
	return int(min(max(need, leastOOMMargin), mostOOMMargin))
}

// oomScore lends what is being started its score: a process begins with its
// parent's, and cannot set its own before it runs.
type oomScore struct {
	fd                  int // of the holder's own score; 0: it cannot be set
	own, kept, ordinary []byte
}

func newOOMScore(fd int, p *Plan) oomScore {
	text := func(margin int) []byte { return []byte(strconv.Itoa(p.OOMScoreAdj - margin)) }
	return oomScore{fd: fd, own: text(holderOOMMargin(p.MemoryBytes)), kept: text(keptOOMMargin), ordinary: text(0)}
}

// lend raises the holder's score until back is called.
func (o *oomScore) lend(keep bool) {
	if keep {
		o.write(o.kept)
		return
	}
	o.write(o.ordinary)
}

func (o *oomScore) back() { o.write(o.own) }

func (o *oomScore) write(score []byte) {
	if o.fd > 0 {
		unix.Pwrite(o.fd, score, 0) //nolint:errcheck // it was written before, and is a preference
	}
}

// setOOMScore sets the holder's own score, and keeps the file for serving,
// which may not open it any more.
func setOOMScore(p *Plan) error {
	if p.OOMScoreAdj == 0 {
		return nil
	}
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // no /proc in this container: nothing to be done, and reported by the probe
	}
	if err != nil {
		return fmt.Errorf("open score: %w", err)
	}
	if _, err := unix.Pwrite(fd, newOOMScore(fd, p).own, 0); err != nil {
		unix.Close(fd)
		return fmt.Errorf("write score: %w", err)
	}
	p.ScoreFile = fd
	return nil
}
