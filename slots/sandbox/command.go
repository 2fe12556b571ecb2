package sandbox

import (
	"errors"
	"io"
)

// The causes that a context of Run or Shell can end with. Any other cause
// ends the command as cancelled.
var (
	ErrTimedOut      = errors.New("command timed out")
	ErrOutputLimited = errors.New("command wrote more output than allowed")
	ErrDiskLimited   = errors.New("slot used more disk than allowed")
)

// Command is one process to run in a slot, together with everything it
// starts.
type Command struct {
	Argv   []string // Argv[0] is looked up on the slot's PATH unless it holds a slash
	Script []byte   // when not nil: put on a file that the process can read, whose path is appended to Argv
	Env    []string // K=V, on top of the slot's own environment; the last one wins
	Cwd    string   // the slot's view, or relative to the workspace; "" is the workspace

	Stdin  io.Reader // nil reads as empty
	Stdout io.Writer // written from one goroutine; nil discards
	Stderr io.Writer // written from one goroutine; nil discards

	NoNetwork  bool // refused with slots.KindUnavailable where the level cannot give it
	Background bool // processes that outlive the command stay until reset
	Live       bool // somebody follows the output: it is not collected first
}

// ShellCommand is one command for the slot's persistent shell.
type ShellCommand struct {
	Command string
	Restart bool // start a new shell first; Command may then be empty
	Stdout  io.Writer
	Stderr  io.Writer
}

// ShellState says what became of the persistent shell.
type ShellState struct {
	Restarted bool   // the next command meets a new shell process
	Note      string // why, for people; empty when nothing happened
}
