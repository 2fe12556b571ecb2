package process

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// maxChunk is the most bytes that one Next answers unless it is asked for fewer.
const maxChunk = 64 << 10

// Text is the window of a stream as text for people.
type Text struct {
	String    string // head, a note of what was left out, tail; without trailing newlines
	Truncated bool   // the stream is longer than the window
	Replaced  bool   // it is not UTF-8: each wrong byte became U+FFFD
	Omitted   int64  // bytes left out of the middle
	OmittedAt int64  // the offset at which they were; 0 unless Truncated
}

// GapError says that the bytes of the stream from From up to To are no longer
// kept. Reading can go on at To.
type GapError struct{ From, To int64 }

// Error returns the sentence.
func (e *GapError) Error() string {
	return fmt.Sprintf("output bytes %d to %d are no longer kept", e.From, e.To)
}

// Total is the length of the stream so far, in bytes.
func (c *Capture) Total() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// Kept is the memory that the window takes, in bytes.
func (c *Capture) Kept() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(cap(c.head) + cap(c.tail))
}

// Spilled is how many bytes from the stream's start are in the spill; 0 when
// none was opened. It stays after Release.
func (c *Capture) Spilled() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spilled
}

// SpillErr is why the spill ends before the stream does, other than by its
// own bound; nil while all is well.
func (c *Capture) SpillErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spillErr
}

// Text returns the window as text.
func (c *Capture) Text() Text {
	head, tail, total := c.window()
	omitted := total - int64(len(head)+len(tail))
	text, replaced := decode(head)
	if omitted == 0 {
		return Text{String: strings.TrimRight(text, "\n"), Replaced: replaced}
	}
	end, replacedToo := decode(tail)
	return Text{
		String:    fmt.Sprintf("%s\n[... %d bytes omitted ...]\n%s", text, omitted, strings.TrimRight(end, "\n")),
		Truncated: true,
		Replaced:  replaced || replacedToo,
		Omitted:   omitted,
		OmittedAt: int64(len(head)),
	}
}

// Bytes returns the window as it was written: the same head and tail as Text,
// with nothing between them and nothing trimmed.
func (c *Capture) Bytes() []byte {
	head, tail, _ := c.window()
	return append(head, tail...)
}

// window returns copies of the head and the tail that may be shown. A stream
// within the window is all head. Both are cut between code points: the kept
// bytes are enough for a full half of the widest ones.
func (c *Capture) window() (head, tail []byte, total int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	head = append([]byte(nil), c.head...)
	tail = c.ringLocked(0, len(c.tail))
	if c.total == int64(len(head)+len(tail)) {
		head, tail = append(head, tail...), nil
		if len(head) <= c.config.Window || utf8.RuneCount(head) <= c.config.Window {
			return head, nil, c.total
		}
		tail = head
	}
	half := c.config.Window / 2
	return firstRunes(head, c.config.Window-half), lastRunes(tail, half), c.total
}

// ringLocked copies n bytes of the tail, from the i-th oldest on.
func (c *Capture) ringLocked(i, n int) []byte {
	if n == 0 {
		return nil
	}
	out := make([]byte, n)
	start := (c.next + i) % len(c.tail)
	copied := copy(out, c.tail[start:])
	copy(out[copied:], c.tail)
	return out
}

func firstRunes(b []byte, n int) []byte {
	end := 0
	for ; n > 0 && end < len(b); n-- {
		_, size := utf8.DecodeRune(b[end:])
		end += size
	}
	return b[:end:end]
}

func lastRunes(b []byte, n int) []byte {
	start := len(b)
	for ; n > 0 && start > 0; n-- {
		_, size := utf8.DecodeLastRune(b[:start])
		start -= size
	}
	return b[start:]
}

// decode makes text of b. Each byte that is part of no code point counts as
// one and becomes U+FFFD.
func decode(b []byte) (text string, replaced bool) {
	if utf8.Valid(b) {
		return string(b), false
	}
	var out strings.Builder
	out.Grow(len(b) + len(b)/2)
	for _, r := range string(b) {
		out.WriteRune(r)
	}
	return out.String(), true
}

// Next returns at most limit bytes of the stream from offset on; limit <= 0
// means 64 KiB. It blocks until there are any. At the end of a closed stream it
// answers io.EOF, for bytes that are no longer kept a *GapError, and when ctx
// ends its cause.
func (c *Capture) Next(ctx context.Context, offset int64, limit int) ([]byte, error) {
	if offset < 0 {
		return nil, fmt.Errorf("read output: offset %d is negative", offset)
	}
	if limit <= 0 {
		limit = maxChunk
	}
	if err := c.await(ctx, offset); err != nil {
		return nil, err
	}
	c.mu.Lock()
	tailStart := c.total - int64(len(c.tail))
	spill := c.spill
	switch inSpill := c.spilled - offset; {
	case offset >= tailStart:
		defer c.mu.Unlock()
		n := min(int64(limit), c.total-offset)
		return c.ringLocked(int(offset-tailStart), int(n)), nil
	case offset < int64(len(c.head)):
		defer c.mu.Unlock()
		kept := c.head[offset:]
		return append([]byte(nil), kept[:min(limit, len(kept))]...), nil
	case spill != nil && inSpill > 0:
		c.mu.Unlock()
		return readSpill(spill, offset, int(min(int64(limit), inSpill)), tailStart)
	default:
		defer c.mu.Unlock()
		return nil, &GapError{From: offset, To: tailStart}
	}
}

// Reach is how far the bytes from offset on are kept without a gap: offset
// itself where they are not kept, and the length of the stream at most.
func (c *Capture) Reach(offset int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	begin := int64(len(c.head)) // of what is kept from the stream's start on
	if c.spill != nil {
		begin = max(begin, c.spilled)
	}
	if tail := c.total - int64(len(c.tail)); offset >= tail || begin >= tail {
		return max(offset, c.total)
	}
	return max(offset, begin)
}

// readSpill reads what was in the spill a moment ago. One that was released
// since, or that the disk lost, leaves a gap up to the tail.
func readSpill(spill Spill, offset int64, n int, tailStart int64) ([]byte, error) {
	chunk := make([]byte, n)
	n, err := spill.ReadAt(chunk, offset)
	if n == 0 && err != nil {
		return nil, &GapError{From: offset, To: tailStart}
	}
	return chunk[:n], nil
}

// await blocks until the stream is longer than offset.
func (c *Capture) await(ctx context.Context, offset int64) error {
	for {
		changed, err := c.progress(offset)
		if changed == nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("follow output: %w", context.Cause(ctx))
		}
	}
}

// progress returns what to wait on, or nil when there are bytes at offset, or
// will be none.
func (c *Capture) progress(offset int64) (<-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case offset < c.total:
		return nil, nil
	case c.closed:
		return nil, io.EOF
	}
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed, nil
}
