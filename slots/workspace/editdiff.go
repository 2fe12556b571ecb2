package workspace

import (
	"bytes"
	"fmt"
	"strings"
)

const (
	diffContext = 3    // lines around a change
	diffBytes   = 8192 // after which no further hunk is begun
	diffColumns = 500  // of one line
)

// change is one hunk: the lines [start, end) of the old text, and what they
// become.
type change struct {
	start, end int // byte positions, at lines
	after      []byte
}

// editDiff shows the first replacements of old by new as hunks of a unified
// diff.
func editDiff(content []byte, old, replacement string) string {
	var out strings.Builder
	line, shift, counted, pos := 1, 0, 0, 0
	for {
		c, next, ok := nextChange(content, pos, old, replacement)
		if !ok {
			return out.String()
		}
		if out.Len() > diffBytes {
			out.WriteString("...\n")
			return out.String()
		}
		line += bytes.Count(content[counted:c.start], []byte{'\n'})
		counted = c.start
		shift += writeHunk(&out, content, c, line, shift)
		pos = next
	}
}

// nextChange finds the next occurrence at or after pos together with those
// that are so close that their hunks would touch.
func nextChange(content []byte, pos int, old, replacement string) (c change, next int, ok bool) {
	i := bytes.Index(content[pos:], []byte(old))
	if i < 0 {
		return c, 0, false
	}
	at := pos + i
	c.start = bytes.LastIndexByte(content[:at], '\n') + 1
	c.after = append(c.after, content[c.start:at]...)
	for {
		c.after = append(c.after, replacement...)
		next = at + len(old)
		c.end = next
		if content[next-1] != '\n' || lineGoesOn(c.after) {
			c.end = lineEnd(content, next)
		}
		near := forward(content, c.end, 2*diffContext)
		i := bytes.Index(content[next:min(len(content), near+len(old)-1)], []byte(old))
		if i < 0 || len(c.after) > diffBytes {
			c.after = append(c.after, content[next:c.end]...)
			return c, c.end, true
		}
		c.after = append(c.after, content[next:next+i]...)
		at = next + i
	}
}

// lineGoesOn reports whether text ends within a line.
func lineGoesOn(text []byte) bool { return len(text) > 0 && text[len(text)-1] != '\n' }

// forward is the position n lines behind pos.
func forward(content []byte, pos, n int) int {
	for range n {
		pos = lineEnd(content, pos)
	}
	return pos
}

// writeHunk prints one hunk. line is the number of its first changed line in
// the old text; shift is by how many lines the new text is ahead. It returns
// how that changes.
func writeHunk(out *strings.Builder, content []byte, c change, line, shift int) int {
	before := c.start
	for range diffContext {
		if before > 0 {
			before = bytes.LastIndexByte(content[:before-1], '\n') + 1
		}
	}
	behind := forward(content, c.end, diffContext)
	lead, trail := countLines(content[before:c.start]), countLines(content[c.end:behind])
	olds, news := countLines(content[c.start:c.end]), countLines(c.after)
	fmt.Fprintf(out, "@@ -%d,%d +%d,%d @@\n", line-lead, lead+olds+trail, line-lead+shift, lead+news+trail)
	writeLines(out, " ", content[before:c.start])
	writeLines(out, "-", content[c.start:c.end])
	writeLines(out, "+", c.after)
	writeLines(out, " ", content[c.end:behind])
	return news - olds
}

func countLines(text []byte) int {
	n := bytes.Count(text, []byte{'\n'})
	if lineGoesOn(text) {
		n++
	}
	return n
}

func writeLines(out *strings.Builder, mark string, text []byte) {
	from := out.Len()
	for line := range bytes.Lines(text) {
		if out.Len()-from > diffBytes {
			out.WriteString(mark + "...\n")
			return
		}
		out.WriteString(mark + shorten(strings.TrimSuffix(string(line), "\n"), diffColumns) + "\n")
	}
}
