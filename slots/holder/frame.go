package holder

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"berth/slots/workspace"
)

// kind says what a frame means. Its values are the protocol between two
// processes of one binary, so they need no stability.
type kind byte

const (
	kindPlan kind = 1 + iota
	kindSpawn
	kindSweep
	kindMark
	kindOp
	kindCancel
	kindInput
	kindLend
	kindHold
	kindReady
	kindFailed
	kindExited
	kindRefused
	kindSwept
	kindStream
	kindReply
	kindHeld
	kindGone
	kindOutput
	kindLast
)

const (
	headerSize = 10       // kind, flags, id
	maxInline  = 48 << 10 // larger bodies travel in an attached file
	maxBody    = 96 << 20 // no body is larger, attached or not
	maxFiles   = 64       // descriptors in one frame, the attached body included

	flagAttached = 1 << 0 // the last descriptor holds the body
	flagMore     = 1 << 1 // the body goes on in the next frame of that kind and id
)

// frame is one message. files are owned by whoever holds the frame.
type frame struct {
	kind  kind
	id    uint64
	body  []byte
	files []int
	more  bool // there is more of the body
}

// errFrame is what a frame that cannot be read wraps.
var errFrame = errors.New("malformed frame")

// appendFrame encodes kind, id and an inline body.
func appendFrame(dst []byte, k kind, flags byte, id uint64, body []byte) []byte {
	dst = append(dst, byte(k), flags)
	dst = binary.LittleEndian.AppendUint64(dst, id)
	return append(dst, body...)
}

// parseFrame decodes a packet without its attached body. The body aliases b.
func parseFrame(b []byte) (f frame, attached bool, err error) {
	if len(b) < headerSize {
		return frame{}, false, fmt.Errorf("%w: %d bytes", errFrame, len(b))
	}
	f.kind = kind(b[0])
	if f.kind == 0 || f.kind >= kindLast {
		return frame{}, false, fmt.Errorf("%w: kind %d", errFrame, b[0])
	}
	if b[1]&^(flagAttached|flagMore) != 0 {
		return frame{}, false, fmt.Errorf("%w: flags %#x", errFrame, b[1])
	}
	f.id = binary.LittleEndian.Uint64(b[2:])
	f.body = b[headerSize:]
	attached, f.more = b[1]&flagAttached != 0, b[1]&flagMore != 0
	if attached && (len(f.body) != 0 || f.more) {
		return frame{}, false, fmt.Errorf("%w: both inline and attached", errFrame)
	}
	return f, attached, nil
}

// spawnRequest asks for one process. The frame carries its descriptors 0, 1,
// 2, ... in order; without stdin they begin at 1.
type spawnRequest struct {
	Argv    []string
	Env     []string
	Cwd     string
	NoStdin bool
	Script  bool     // the last descriptor is a script: keep it and append its path to argv
	Confine []string // words for the confine trampoline; nil: none
	Keep    bool     // sweeps spare it and everything below it
	Collect bool     // its descriptors 1 and 2 are the holder's to make and to read
}

// outputPassed gives the agent the pipes of a process whose output is being
// collected. The frame carries those that are Open, stdout before stderr, or
// none when the agent is to lend pipes for them, see borrow.
type outputPassed struct {
	Early [2][]byte `json:"early"` // what was read of them
	Open  [2]bool   `json:"open"`
}

// exitReport is the end of one process.
type exitReport struct {
	Status  uint32 // as wait4 gives it
	SpawnNS int64
	RunNS   int64
	CPUNS   int64
	MaxRSS  int64 // bytes
	Alone   bool  // nothing of it is left behind

	Output [2][]byte // all of stdout and stderr, when they were collected and not passed
}

// failure is an error on its way to the other process.
type failure struct {
	Stage string `json:"stage"`
	Errno int    `json:"errno,omitempty"`
	Text  string `json:"text"`
}

// sweepRequest asks to kill what is not kept, or, with Under set, what that
// kept process started since it was marked. With Session set it asks for a
// terminal's end, see terminalOnly.
type sweepRequest struct {
	Under uint64 `json:"under,omitempty"`
	Drop  uint64 `json:"drop,omitempty"` // keep this process no longer

	Session int `json:"session,omitempty"` // what the terminal's keeper said; -1: it said nothing
	UID     int `json:"uid,omitempty"`     // for the spawner: everything that runs as this uid
}

// sweepReport says what a sweep met.
type sweepReport struct {
	Killed int `json:"killed"`
	Left   int `json:"left"` // could not be killed in time
}

// opRequest asks for a file operation.
type opRequest struct {
	Name   string          `json:"name"`
	Args   json.RawMessage `json:"args,omitempty"`
	Inline []byte          `json:"inline,omitempty"` // the input, when it is short
	Piped  bool            `json:"piped,omitempty"`  // the input is the frame's descriptor
}

// inputEnd says, before a piped input ends, whether that is its true end.
type inputEnd struct {
	Whole bool `json:"whole"`
}

// opReply ends a file operation.
type opReply struct {
	Reply  json.RawMessage      `json:"reply,omitempty"`
	Error  *workspace.PathError `json:"error,omitempty"`
	Output []byte               `json:"output,omitempty"` // the whole output, when it was short and no stream was opened
}

// encode never fails for the types above.
func encode(v any) []byte {
	if p, ok := v.(packed); ok {
		return p.pack(nil)
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("holder: encode %T: %v", v, err))
	}
	return b
}

func decode[T any](body []byte) (T, error) {
	var v T
	if u, ok := any(&v).(unpacked); ok {
		from := packet{rest: body}
		u.unpack(&from)
		if err := from.end(); err != nil {
			return v, fmt.Errorf("%w: %w", errFrame, err)
		}
		return v, nil
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("%w: %w", errFrame, err)
	}
	return v, nil
}
