package sandbox

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// uidPool hands out uids. One is used by one sandbox at a time, and again
// only when that sandbox is proven gone.
type uidPool struct {
	first int
	width int // ids that one sandbox takes
	used  []bool
	// claims is a file of the machine that has a locked byte for each uid in
	// use: agents side by side must not share one, since a sandbox ends by
	// killing all that runs as its uid. nil: there is no such file, as in a
	// container of one's own.
	claims *os.File
}

// claimsPath is root's alone, so no slot can lock anything in it.
const claimsPath = "/run/berth-uids"

// open begins to claim uids where that is possible.
func (p *uidPool) open() {
	f, err := os.OpenFile(claimsPath, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		p.claims = f
	}
}

// close gives all claims back.
func (p *uidPool) close() error {
	if p.claims == nil {
		return nil
	}
	return p.claims.Close()
}

func (p *uidPool) take() (int, error) {
	for i := range maxUIDs {
		if i == len(p.used) {
			p.used = append(p.used, false)
		}
		uid := p.first + i*p.width
		if p.used[i] || !p.claim(uid, unix.F_WRLCK) {
			continue
		}
		p.used[i] = true
		return uid, nil
	}
	return 0, fmt.Errorf("all %d uids from %d on are taken, by agents of this machine or by sandboxes that could not be ended", maxUIDs, p.first)
}

func (p *uidPool) give(uid int) {
	if p.owns(uid) {
		p.used[(uid-p.first)/p.width] = false
		p.claim(uid, unix.F_UNLCK)
	}
}

// claim locks or unlocks the uid's byte. It reports false when another agent
// has it.
func (p *uidPool) claim(uid int, how int16) bool {
	if p.claims == nil {
		return true
	}
	err := unix.FcntlFlock(p.claims.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: how, Start: int64(uid), Len: 1})
	return err == nil
}

// maxUIDs bounds the range that counts as the slots'.
const maxUIDs = 4096

func (p *uidPool) owns(uid int) bool { return uid >= p.first && uid < p.first+maxUIDs*p.width }

// A slot with a private root has a range of ids, so that the accounts of its
// programs are there; these begin far above any account of a container.
const (
	privateFirst = 1 << 20
	privateWidth = 1 << 16
)

// IsSlotUID reports whether a uid lies in a range that slots get theirs from,
// when the range of single ids begins at first.
func IsSlotUID(uid, first int) bool {
	single, private := uidPool{first: first, width: 1}, uidPool{first: privateFirst, width: privateWidth}
	return single.owns(uid) || private.owns(uid)
}
