package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress shows on a terminal how far a copy is, and counts it everywhere.
type progress struct {
	out io.Writer // nil: no terminal
	fd  int

	// A request that has failed may still be reading what it was to send.
	mu     sync.Mutex
	name   string
	total  int64 // bytes; 0: not known
	moved  int64 // bytes
	begun  time.Time
	drawn  time.Time
	active bool // there is a line to be ended
}

func (a *app) newProgress() *progress {
	p := &progress{}
	if fd, ok := terminal(a.err); ok {
		p.out, p.fd = a.err, fd
	}
	return p
}

// begin starts the bar of one copy.
func (p *progress) begin(name string, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.total, p.begun = plainText(name), total, time.Now()
}

// drawEvery is how often the bar is drawn.
const drawEvery = 100 * time.Millisecond

// reader counts what is read.
func (p *progress) reader(in io.Reader) io.Reader { return progressReader{p, in} }

type progressReader struct {
	p  *progress
	in io.Reader
}

// Read reads.
func (r progressReader) Read(b []byte) (int, error) {
	n, err := r.in.Read(b)
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.p.moved += int64(n)
	if r.p.out != nil && time.Since(r.p.drawn) >= drawEvery {
		r.p.drawLocked()
	}
	return n, err
}

func (p *progress) drawLocked() {
	p.drawn, p.active = time.Now(), true
	width, _, err := term.GetSize(p.fd)
	if err != nil {
		width = 80
	}
	fmt.Fprint(p.out, "\r"+p.line(width-1)+clearLine)
}

// end draws the bar as it ended, leaves its line and returns how many bytes
// were copied.
func (p *progress) end() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active {
		p.drawLocked()
		fmt.Fprintln(p.out)
	}
	return p.moved
}

// line is the bar in at most so many characters.
func (p *progress) line(width int) string {
	rate := "-"
	if took := time.Since(p.begun).Seconds(); took > 0.1 {
		rate = byteText(int64(float64(p.moved)/took)) + "/s"
	}
	text := fmt.Sprintf("  %s  %s", byteText(p.moved), rate)
	if p.total > 0 {
		const bar = 20
		share := min(1, float64(p.moved)/float64(p.total))
		full := int(share * bar)
		text = fmt.Sprintf("  [%s%s] %3.0f%%%s", strings.Repeat("#", full), strings.Repeat(".", bar-full), share*100, text)
	}
	name := []rune(p.name)
	if room := max(8, width-len(text)); len(name) > room {
		name = append([]rune("…"), name[len(name)-room+1:]...)
	}
	return string(name) + text
}

// byteText is a number of bytes for people.
func byteText(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	size, unit := float64(n)/step, 0
	for size >= step && unit < 4 {
		size /= step
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", size, "KMGTP"[unit])
}
