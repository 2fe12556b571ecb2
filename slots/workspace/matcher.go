package workspace

import (
	"bytes"
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// matcher finds lines, or in multiline mode passages, that match a pattern.
type matcher struct {
	expr      *regexp.Regexp // nil when the literal alone decides
	literal   []byte         // what every match contains; empty: not known
	word      bool           // a match must not begin or end within a word
	multiline bool
}

var errLineBreak = errors.New("pattern holds a line break, which no line contains: ask for multiline")

// newMatcher compiles the pattern. In multiline mode "." matches a line break
// as well.
func newMatcher(pattern string, fixed, ignoreCase, word, multiline bool) (*matcher, error) {
	m := &matcher{word: word, multiline: multiline}
	if fixed {
		pattern = regexp.QuoteMeta(pattern)
	}
	flags := "m"
	if ignoreCase {
		flags += "i"
	}
	if multiline {
		flags += "s"
	}
	pattern = "(?" + flags + ")" + pattern
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	tree = tree.Simplify()
	if !multiline && holdsLineBreak(tree) {
		return nil, errLineBreak
	}
	m.literal = []byte(requiredLiteral(tree))
	if isLiteral(tree) && !word && !multiline {
		return m, nil
	}
	m.expr, err = regexp.Compile(pattern)
	return m, err
}

// find returns the first line at or after pos that matches, as the range of
// its bytes with the line break; in multiline mode the lines that a match
// covers. pos is the start of a line. Without a match both are len(text).
func (m *matcher) find(text []byte, pos int) (start, end int) {
	if m.multiline {
		return m.findPassage(text, pos)
	}
	for pos < len(text) {
		if len(m.literal) > 0 {
			i := bytes.Index(text[pos:], m.literal)
			if i < 0 {
				break
			}
			pos += bytes.LastIndexByte(text[pos:pos+i], '\n') + 1
		}
		end := lineEnd(text, pos)
		if m.expr == nil || m.matches(trimBreak(text[pos:end])) {
			return pos, end
		}
		pos = end
	}
	return len(text), len(text)
}

func (m *matcher) matches(line []byte) bool {
	if !m.word {
		return m.expr.Match(line)
	}
	_, _, ok := m.findWord(line, 0)
	return ok
}

func (m *matcher) findPassage(text []byte, pos int) (start, end int) {
	from, to, ok := m.findFrom(text, pos)
	if !ok {
		return len(text), len(text)
	}
	start = bytes.LastIndexByte(text[:from], '\n') + 1
	end = to
	if to == from || text[to-1] != '\n' {
		end = lineEnd(text, to)
	}
	return start, end
}

func (m *matcher) findFrom(text []byte, pos int) (from, to int, ok bool) {
	if pos >= len(text) {
		return 0, 0, false
	}
	if m.word {
		return m.findWord(text, pos)
	}
	loc := m.expr.FindIndex(text[pos:])
	if loc == nil || pos+loc[0] >= len(text) {
		return 0, 0, false
	}
	return pos + loc[0], pos + loc[1], true
}

// findWord finds a match that begins and ends at a word's edge: beside it
// stands no word character. Unlike \b it allows matches that begin or end
// with another character themselves.
func (m *matcher) findWord(text []byte, pos int) (from, to int, ok bool) {
	for pos <= len(text) {
		loc := m.expr.FindIndex(text[pos:])
		if loc == nil {
			break
		}
		from, to = pos+loc[0], pos+loc[1]
		if !isWord(utf8.DecodeLastRune(text[:from])) && !isWord(utf8.DecodeRune(text[to:])) {
			return from, to, true
		}
		_, size := utf8.DecodeRune(text[from:])
		pos = from + max(size, 1)
	}
	return 0, 0, false
}

// isWord takes what decoding a rune gave. An invalid byte counts as part of a
// word, as for ripgrep; the end of the text does not.
func isWord(r rune, size int) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) || r == utf8.RuneError && size == 1
}

// lineEnd is the position behind the line break of the line that pos is in.
func lineEnd(text []byte, pos int) int {
	if i := bytes.IndexByte(text[pos:], '\n'); i >= 0 {
		return pos + i + 1
	}
	return len(text)
}

func trimBreak(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\n' {
		return line[:n-1]
	}
	return line
}

func isLiteral(tree *syntax.Regexp) bool {
	return tree.Op == syntax.OpLiteral && tree.Flags&syntax.FoldCase == 0
}

// requiredLiteral is the longest text that surely stands in every match, so
// that whole buffers can be searched for it before any regular expression is
// tried.
func requiredLiteral(tree *syntax.Regexp) string {
	switch tree.Op { //nolint:exhaustive // the others promise nothing
	case syntax.OpLiteral:
		if text := string(tree.Rune); isLiteral(tree) && !strings.Contains(text, "\n") {
			return text
		}
	case syntax.OpCapture, syntax.OpPlus:
		return requiredLiteral(tree.Sub[0])
	case syntax.OpConcat:
		longest := ""
		for _, sub := range tree.Sub {
			if text := requiredLiteral(sub); len(text) > len(longest) {
				longest = text
			}
		}
		return longest
	}
	return ""
}

func holdsLineBreak(tree *syntax.Regexp) bool {
	return tree.Op == syntax.OpLiteral && slices.Contains(tree.Rune, '\n') || slices.ContainsFunc(tree.Sub, holdsLineBreak)
}
