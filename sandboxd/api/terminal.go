package api

import "berth/slots"

// SubprotocolTerminal names the protocol of a terminal's WebSocket, for who
// wants to name it. Binary messages are what was typed, and what is shown.
// Text messages are a TerminalControl from the client, and one TerminalEnd from
// the server, which is the last of all.
const SubprotocolTerminal = "berth.terminal.v1"

// The window of a client that says nothing of it, and the largest, in
// characters.
const (
	DefaultColumns = 80
	DefaultRows    = 24
	MaxWindow      = 10_000 // of either
)

// WindowSize is the size of a terminal's window, in characters.
type WindowSize struct {
	Columns int `json:"cols"`
	Rows    int `json:"rows"`
}

// Check refuses what no window has.
func (w WindowSize) Check() error {
	if w.Columns < 1 || w.Columns > MaxWindow || w.Rows < 1 || w.Rows > MaxWindow {
		return slots.Errorf(slots.KindBadRequest, "a window has 1 to %d cols and rows, got %d and %d", MaxWindow, w.Columns, w.Rows)
	}
	return nil
}

// TerminalRequest says what runs on a terminal. It travels as a query.
type TerminalRequest struct {
	WindowSize        // 0: the default
	Command    string // for bash; "": bash itself, interactive
	Term       string // what kind of terminal the client's is, as TERM; "": nothing is said
	Cwd        string // "": the workspace
}

// TerminalControl is what a client says beside what is typed.
type TerminalControl struct {
	Resize *WindowSize `json:"resize,omitempty"`
}

// TerminalEnd says how a terminal has ended: by the end of its command, or for
// another reason.
type TerminalEnd struct {
	Exit  *TerminalExit `json:"exit,omitempty"`
	Error *Fault        `json:"error,omitempty"`
}

// TerminalExit is how the command of a terminal has ended.
type TerminalExit struct {
	Outcome     slots.Outcome `json:"outcome"`
	ExitCode    int           `json:"exit_code"` // 128 and the signal's number when a signal ended it
	Signal      string        `json:"signal,omitempty"`
	DurationMS  float64       `json:"duration_ms"`
	CPUMS       float64       `json:"cpu_ms"`
	MaxRSSBytes int64         `json:"max_rss_bytes"`
	OOMKilled   bool          `json:"oom_killed"`
}
