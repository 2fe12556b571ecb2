package process

import (
	"io"
	"os"
	"slices"
	"sync"
)

// Defaults of CaptureConfig.
const (
	DefaultWindow   = 50_000   // code points
	DefaultSpillMax = 64 << 20 // bytes
)

// maxRune is the most bytes that a code point takes in UTF-8.
const maxRune = 4

// Spill is where a stream that outgrows its window is kept as a whole. ReadAt
// may run beside WriteAt and Close, as on an *os.File.
type Spill interface {
	io.WriterAt
	io.ReaderAt
	io.Closer
}

// CaptureConfig says how much of a stream is kept, and where. The zero value
// keeps the default window and no more.
type CaptureConfig struct {
	Window   int                   // code points kept for Text, half head and half tail; default DefaultWindow
	Spill    func() (Spill, error) // opened once, when the stream outgrows the window; nil: none
	SpillMax int64                 // bytes kept in the spill; default DefaultSpillMax
	Limit    int64                 // bytes of stream beyond which OnLimit is called, once; 0: none
	OnLimit  func()                // called by the Write that passes Limit, under no lock
}

// Capture keeps one output stream of an execution. Its memory is at most four
// bytes for each code point of the window, whatever is written. All methods
// may be called from any goroutine.
type Capture struct {
	config  CaptureConfig
	headMax int // bytes kept from the start
	tailMax int // bytes kept from the end

	// writing is held for a whole Write, disk included, and is taken before
	// mu. It guards spillOver and limited.
	writing   sync.Mutex
	spillOver bool // nothing more goes to the spill
	limited   bool

	// mu guards what follows; no I/O happens under it. What is below is
	// changed under both mutexes, so that Write reads it under writing alone.
	mu       sync.Mutex
	head     []byte // the first bytes of the stream
	tail     []byte // the bytes after head; a ring of the last tailMax ones once it is that long
	next     int    // where the ring's next byte goes
	total    int64
	spill    Spill // nil until opened and after Release
	spilled  int64 // how many of the stream's first bytes are in spill
	spillErr error
	closed   bool
	changed  chan struct{} // made under mu by who waits; closed by the next Write, Close or Release
}

// NewCapture makes an empty Capture.
func NewCapture(config CaptureConfig) *Capture {
	if config.Window <= 0 {
		config.Window = DefaultWindow
	}
	if config.SpillMax <= 0 {
		config.SpillMax = DefaultSpillMax
	}
	half := config.Window / 2
	return &Capture{config: config, headMax: (config.Window - half) * maxRune, tailMax: half * maxRune}
}

// Write takes the next bytes of the stream. It copies p, and fails only after
// Close; a spill that is full or broken is noted in SpillErr.
func (c *Capture) Write(p []byte) (int, error) {
	passed, err := c.write(p)
	if err != nil {
		return 0, err
	}
	if passed && c.config.OnLimit != nil {
		c.config.OnLimit()
	}
	return len(p), nil
}

// write reports whether p is what passed the limit.
func (c *Capture) write(p []byte) (passed bool, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed {
		return false, os.ErrClosed
	}
	// The spill comes first, so that whatever leaves the ring is on disk.
	c.spillNext(p)
	c.mu.Lock()
	c.keepLocked(p)
	c.total += int64(len(p))
	total := c.total
	c.wakeLocked()
	c.mu.Unlock()
	passed = !c.limited && c.config.Limit > 0 && total > c.config.Limit
	c.limited = c.limited || passed
	return passed, nil
}

// keepLocked puts p into the window.
func (c *Capture) keepLocked(p []byte) {
	n := min(len(p), c.headMax-len(c.head))
	c.head = appendWithin(c.head, p[:n], c.headMax)
	p = p[n:]
	n = min(len(p), c.tailMax-len(c.tail))
	c.tail = appendWithin(c.tail, p[:n], c.tailMax)
	p = p[n:]
	p = p[max(0, len(p)-c.tailMax):]
	for len(p) > 0 {
		n := copy(c.tail[c.next:], p)
		c.next = (c.next + n) % c.tailMax
		p = p[n:]
	}
}

// appendWithin appends without ever allocating more than limit bytes.
func appendWithin(b, p []byte, limit int) []byte {
	if need := len(b) + len(p); need > cap(b) && cap(b) > 0 {
		grown := make([]byte, len(b), min(limit, max(need, 2*cap(b))))
		copy(grown, b)
		b = grown
	}
	return append(b, p...)
}

// spillNext puts p into the spill if the stream with p is longer than the
// window can show. The stream's start, which was in memory alone until then,
// goes before it.
func (c *Capture) spillNext(p []byte) {
	if c.spillOver || c.config.Spill == nil || c.total+int64(len(p)) <= int64(c.config.Window) {
		return
	}
	if c.spill == nil {
		spill, err := c.config.Spill()
		if err != nil {
			c.spilledTo(nil, 0, err)
			return
		}
		// Head and tail are still contiguous here: together they hold at
		// least four times the window in bytes.
		start := append(slices.Clip(c.head), c.tail...)
		n, err := spill.WriteAt(start[:min(int64(len(start)), c.config.SpillMax)], 0)
		c.spilledTo(spill, int64(n), err)
	}
	if c.spillOver {
		return
	}
	n, err := c.spill.WriteAt(p[:min(int64(len(p)), c.config.SpillMax-c.spilled)], c.spilled)
	c.spilledTo(c.spill, c.spilled+int64(n), err)
}

// spilledTo notes how far the spill reaches and whether it goes on.
func (c *Capture) spilledTo(spill Spill, n int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spill, c.spilled, c.spillErr = spill, n, err
	c.spillOver = err != nil || n >= c.config.SpillMax
}

// wakeLocked wakes all who wait in Next.
func (c *Capture) wakeLocked() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// Close ends the stream: followers get io.EOF once they have read all. What
// is kept stays readable until Release. More than one Close is as one.
func (c *Capture) Close() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	// No more than the window is held on to: the functions hold their makers.
	c.config.Spill, c.config.OnLimit = nil, nil
	c.wakeLocked()
	return nil
}

// Silence is the ended Capture of a stream that nothing was written to, for
// all who keep one.
func Silence() *Capture { return silence }

var silence = &Capture{closed: true}

// Release ends the stream, closes the spill and drops the window. Text shows
// everything as omitted afterwards and Next answers a GapError. The counts
// stay.
func (c *Capture) Release() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	c.closed = true
	c.head, c.tail, c.next = nil, nil, 0
	spill := c.spill
	c.spill = nil
	c.wakeLocked()
	c.mu.Unlock()
	if spill == nil {
		return nil
	}
	return spill.Close()
}
