package workspace

import (
	"bufio"
	"bytes"
	"strconv"
	"unicode/utf8"
)

// maxColumns is the length above which a printed line is cut.
const maxColumns = 4096

// printer writes what grep finds in the form of `rg --no-heading`:
// path:line:text for matches, path-line-text for context, and "--" between
// passages that do not touch.
//
// Positions are those of the text at hand; roll tells the printer when they
// shift. Line numbers are counted from the last position for which one is
// known.
type printer struct {
	out           *bufio.Writer
	numbers       bool
	before, after int

	path     string
	anchor   int // a position
	line     int // and its line number
	start    int // where the printable text of the file begins
	printed  int // position behind the last printed line
	some     bool
	someFile bool // something of this file was printed
	trail    int  // lines of context still to be printed
}

// file begins a new file.
func (p *printer) file(path string) {
	p.path = path
	p.anchor, p.line = 0, 1
	p.start, p.printed, p.trail, p.someFile = 0, 0, 0, false
}

// at remembers that a line begins at pos.
func (p *printer) at(text []byte, pos int) {
	p.line += bytes.Count(text[p.anchor:pos], []byte{'\n'})
	p.anchor = pos
}

// roll tells that text[:n] is gone.
func (p *printer) roll(text []byte, n int) {
	if p.anchor < n {
		p.at(text, n)
	}
	p.anchor -= n
	p.printed -= n
	p.start = max(0, p.start-n)
}

// skipTo tells that text from old to pos is the rest of a line that counts as
// printed, and is no context.
func (p *printer) skipTo(old, pos int) {
	if p.printed == old {
		p.printed = pos
	}
	p.start = pos
}

// match prints the matching lines text[start:end] with the context before.
func (p *printer) match(text []byte, start, end int) error {
	from := start
	for range p.before {
		if from <= max(p.printed, p.start, 0) {
			break
		}
		from = max(bytes.LastIndexByte(text[:from-1], '\n')+1, p.start)
	}
	from = max(from, min(p.printed, start))
	if (p.before > 0 || p.after > 0) && p.some && (!p.someFile || from != p.printed) {
		if err := p.text("--", "\n"); err != nil {
			return err
		}
	}
	p.some, p.someFile = true, true
	if err := p.lines(text, from, start, '-'); err != nil {
		return err
	}
	p.trail = p.after
	return p.lines(text, max(start, p.printed), end, ':')
}

// trailing prints context lines after the last match, up to limit.
func (p *printer) trailing(text []byte, limit int) {
	for p.trail > 0 && p.printed < limit {
		p.trail--
		// An error stays in the writer and comes out at the next match or flush.
		_ = p.lines(text, p.printed, min(lineEnd(text, p.printed), limit), '-')
	}
}

func (p *printer) lines(text []byte, from, to int, mark byte) error {
	for from < to {
		end := min(lineEnd(text, from), to)
		if err := p.oneLine(text, from, end, mark); err != nil {
			return err
		}
		from = end
		p.printed = end
	}
	return nil
}

// oneLine prints one line. The writer keeps its first error, so only the last
// write is asked for it.
func (p *printer) oneLine(text []byte, from, end int, mark byte) error {
	w := p.out
	if p.path != "" {
		_, _ = w.WriteString(p.path)
		_ = w.WriteByte(mark)
	}
	if p.numbers {
		_, _ = w.Write(strconv.AppendInt(w.AvailableBuffer(), int64(p.lineAt(text, from)), 10))
		_ = w.WriteByte(mark)
	}
	line := trimBreak(text[from:end])
	if len(line) <= maxColumns {
		_, _ = w.Write(line)
		return w.WriteByte('\n')
	}
	cut := maxColumns
	for cut > 0 && !utf8.RuneStart(line[cut]) {
		cut--
	}
	_, _ = w.Write(line[:cut])
	return p.text(" [... omitted end of long line]", "\n")
}

// lineAt is the number of the line at pos. Only context may lie before the
// anchor.
func (p *printer) lineAt(text []byte, pos int) int {
	if pos < p.anchor {
		return p.line - bytes.Count(text[pos:p.anchor], []byte{'\n'})
	}
	p.at(text, pos)
	return p.line
}

func (p *printer) text(parts ...string) error {
	var err error
	for _, s := range parts {
		_, err = p.out.WriteString(s)
	}
	return err
}

func (p *printer) count(n int) error {
	if p.path == "" {
		return p.text(strconv.Itoa(n), "\n")
	}
	return p.text(p.path, ":", strconv.Itoa(n), "\n")
}

// binary says that a file with matches holds a NUL byte.
func (p *printer) binary(offset int64, explicit bool) error {
	where := `(found "\0" byte around offset ` + strconv.FormatInt(offset, 10) + ")\n"
	if explicit {
		return p.text("binary file matches ", where)
	}
	return p.text(p.path, ": WARNING: stopped searching binary file after match ", where)
}
