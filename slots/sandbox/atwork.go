package sandbox

import (
	"sync"
	"sync/atomic"
	"time"
)

// worker is what is at work in an instance.
type worker int

// A command is whatever answers a call, of a few processes or one file
// operation. A slot has one at a time, and terminals beside it.
const (
	aCommand worker = iota
	aTerminal
	workers
)

// atWork is who is at work in an instance. What is seen of all of it only, its
// size on disk and the processes that the kernel kills for want of memory, is
// told of one of them. Nothing tells a command's part from that of a terminal
// beside it: then it is the command's, which is what most likely runs into a
// limit, and of which somebody waits to hear.
type atWork struct {
	counted atomic.Int64 // kills, when they could last be counted

	mu            sync.Mutex // guards what follows
	now           [workers]int
	commands      int   // so far
	oomKills      int64 // when somebody last came or went beside a terminal
	terminalKills int64 // those of them that came while there were terminals only

	disk     diskSize      // at a command's last look
	diskFree int64         // what all had left on the file system then
	diskTook time.Duration // that look
	unseen   time.Duration // how long commands have been at work since

	diskEnd diskSize // when a command, or a terminal, last ended beside a terminal
}

// enter counts one more until leave is called.
func (i *instance) enter(w worker) (leave func()) {
	i.atWork.mu.Lock()
	defer i.atWork.mu.Unlock()
	i.countKillsLocked(w)
	i.atWork.now[w]++
	if w == aCommand {
		i.atWork.commands++
	}
	return func() {
		i.atWork.mu.Lock()
		defer i.atWork.mu.Unlock()
		i.countKillsLocked(w)
		i.atWork.now[w]--
	}
}

// countKillsLocked tells what was killed since somebody last came or went.
func (i *instance) countKillsLocked(w worker) {
	a := &i.atWork
	if w == aCommand && a.now[aTerminal] == 0 {
		return // commands alone compare for themselves
	}
	n := i.oomKills()
	if a.now[aCommand] == 0 && a.now[aTerminal] > 0 {
		a.terminalKills += n - a.oomKills
	}
	a.oomKills = n
}

// oomKills grows with each process of the instance that the kernel kills for
// want of memory. What cannot be counted now is as much as it was: a receipt
// then lacks a reason, not its result.
func (i *instance) oomKills() int64 {
	if i.group == nil {
		return 0
	}
	if n, err := i.group.OOMKills(); err == nil {
		i.atWork.counted.Store(n)
	}
	return i.atWork.counted.Load()
}

// terminalKills grows with those that are terminals'.
func (i *instance) terminalKills() int64 {
	i.atWork.mu.Lock()
	defer i.atWork.mu.Unlock()
	i.countKillsLocked(aTerminal)
	return i.atWork.terminalKills
}

// present is what is at work at one time.
type present struct {
	command, terminal bool
	commands          int // so far
	diskEnd           diskSize
}

func (i *instance) present() present {
	i.atWork.mu.Lock()
	defer i.atWork.mu.Unlock()
	a := &i.atWork
	return present{a.now[aCommand] > 0, a.now[aTerminal] > 0, a.commands, a.diskEnd}
}
