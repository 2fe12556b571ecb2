package workspace

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxPattern bounds the length of a glob. Together with regular expressions
// that match in linear time it bounds what matching one path can cost;
// libraries that match globs by backtracking take exponential time for some
// patterns.
const maxPattern = 4096

// dialect is a flavour of globs.
type dialect struct {
	braces   bool // {a,b} are alternatives
	selfDeep bool // "a/**" matches a itself, not only what is below
}

var (
	starGlob = dialect{braces: true, selfDeep: true} // of the module doublestar, and of editors
	gitGlob  = dialect{}                             // of .gitignore
	rgGlob   = dialect{braces: true}                 // of rg -g
)

// glob is a compiled pattern for whole paths or names. `*`, `?` and classes
// do not match a slash; `**` as a whole component matches any number of
// components.
type glob struct {
	literal string         // the pattern has no special character
	suffix  string         // the pattern is "*" and this, without a slash
	deep    *glob          // the pattern is "**/" and this one, which has no slash
	expr    *regexp.Regexp // any other
}

func compileGlob(pattern string, d dialect) (*glob, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("pattern is longer than %d bytes", maxPattern)
	}
	if rest, ok := strings.CutPrefix(pattern, "**/"); ok && rest != "" && !strings.Contains(rest, "/") && rest != "**" {
		g, err := compileGlob(rest, d)
		return &glob{deep: g}, err
	}
	const special = `*?[]{}\`
	if !strings.ContainsAny(pattern, special) {
		return &glob{literal: pattern}, nil
	}
	if rest, ok := strings.CutPrefix(pattern, "*"); ok && rest != "" && !strings.ContainsAny(rest, special+"/") {
		return &glob{suffix: rest}, nil
	}
	t := globTranslation{dialect: d, rest: pattern}
	text, err := t.translate()
	if err != nil {
		return nil, err
	}
	expr, err := regexp.Compile(`(?s)\A(?:` + text + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("pattern is too large: %w", err)
	}
	return &glob{expr: expr}, nil
}

func (g *glob) match(path string) bool {
	switch {
	case g.deep != nil:
		return g.deep.match(path[strings.LastIndexByte(path, '/')+1:])
	case g.expr != nil:
		return g.expr.MatchString(path)
	case g.suffix != "":
		rest, ok := strings.CutSuffix(path, g.suffix)
		return ok && !strings.Contains(rest, "/")
	}
	return path == g.literal
}

// globTranslation turns a glob into the text of a regular expression.
type globTranslation struct {
	dialect
	rest string
	out  strings.Builder
	// For each open brace, whether it stands at the start of a component:
	// then so does each of its alternatives.
	braceStarts []bool
}

var errBadPattern = errors.New("syntax error in pattern")

func (t *globTranslation) translate() (string, error) {
	start := true // at the start of a component
	for t.rest != "" {
		c := t.rest[0]
		wasStart := start
		start = c == '/'
		switch {
		case c == '/' && t.deepEnd():
			t.rest = ""
		case wasStart && t.deepStart():
			start = true
		case c == '*':
			t.rest = strings.TrimLeft(t.rest, "*")
			t.out.WriteString(`[^/]*`)
		case c == '?':
			t.rest = t.rest[1:]
			t.out.WriteString(`[^/]`)
		case c == '[':
			if err := t.class(); err != nil {
				return "", err
			}
		case t.braces && strings.IndexByte("{,}", c) >= 0:
			start = t.brace(c, wasStart)
		case c == '\\':
			if len(t.rest) == 1 {
				return "", errBadPattern
			}
			t.rest = t.rest[1:]
			t.rune()
		default:
			t.rune()
		}
	}
	if len(t.braceStarts) > 0 {
		return "", errBadPattern
	}
	return t.out.String(), nil
}

// deepEnd translates "/**" at the end.
func (t *globTranslation) deepEnd() bool {
	if t.rest != "/**" {
		return false
	}
	if t.selfDeep {
		t.out.WriteString(`(?:/.*)?`)
	} else {
		t.out.WriteString(`/.+`)
	}
	return true
}

// deepStart translates "**" where it is a whole component. At the end of an
// alternative it stands for at least one component.
func (t *globTranslation) deepStart() bool {
	after, ok := strings.CutPrefix(t.rest, "**")
	if !ok {
		return false
	}
	if below, ok := strings.CutPrefix(after, "/"); ok {
		t.rest = below
		t.out.WriteString(`(?:[^/]+/)*`)
		return true
	}
	if after == "" || len(t.braceStarts) > 0 && (after[0] == ',' || after[0] == '}') {
		t.rest = after
		t.out.WriteString(`.*`)
		return true
	}
	return false
}

func (t *globTranslation) brace(c byte, start bool) (atStart bool) {
	open := len(t.braceStarts)
	t.rest = t.rest[1:]
	switch {
	case c == '{':
		t.braceStarts = append(t.braceStarts, start)
		t.out.WriteString(`(?:`)
		return start
	case open == 0: // nothing is open: an ordinary character
		t.out.WriteString(regexp.QuoteMeta(string(c)))
		return false
	case c == ',':
		t.out.WriteString(`|`)
		return t.braceStarts[open-1]
	}
	t.braceStarts = t.braceStarts[:open-1]
	t.out.WriteString(`)`)
	return false
}

// rune translates one character that stands for itself.
func (t *globTranslation) rune() {
	r, n := utf8.DecodeRuneInString(t.rest)
	if r == utf8.RuneError && n == 1 {
		// Regular expressions see each invalid byte as U+FFFD.
		t.out.WriteString(`\x{FFFD}`)
	} else {
		t.out.WriteString(regexp.QuoteMeta(t.rest[:n]))
	}
	t.rest = t.rest[n:]
}

// posixClasses are the named classes without the slash.
var posixClasses = map[string]string{
	"alnum": `0-9A-Za-z`, "alpha": `A-Za-z`, "blank": ` \t`, "cntrl": `\x00-\x1f\x7f`, "digit": `0-9`,
	"graph": `!-.0-~`, "lower": `a-z`, "print": ` -.0-~`, "punct": `!-.:-@\[-` + "`" + `\{-~`,
	"space": `\t-\r `, "upper": `A-Z`, "xdigit": `0-9A-Fa-f`,
}

// class translates "[...]".
func (t *globTranslation) class() error {
	rest := t.rest[1:]
	negated := rest != "" && (rest[0] == '!' || rest[0] == '^')
	var set strings.Builder
	if negated {
		rest = rest[1:]
		set.WriteString(`/`)
	}
	for first := true; ; first = false {
		if rest == "" {
			return errBadPattern
		}
		if rest[0] == ']' && !first {
			break
		}
		if name, after, ok := strings.Cut(strings.TrimPrefix(rest, "[:"), ":]"); ok && strings.HasPrefix(rest, "[:") {
			members, known := posixClasses[name]
			if !known {
				return errBadPattern
			}
			set.WriteString(members)
			rest = after
			continue
		}
		low, after, err := classRune(rest)
		if err != nil {
			return err
		}
		high := low
		if len(after) > 1 && after[0] == '-' && after[1] != ']' {
			if high, after, err = classRune(after[1:]); err != nil {
				return err
			}
		}
		rest = after
		writeRange(&set, low, high)
	}
	t.rest = rest[1:]
	switch {
	case negated:
		t.out.WriteString(`[^` + set.String() + `]`)
	case set.Len() == 0:
		t.out.WriteString(`[^\x00-\x{10FFFF}]`) // matches nothing
	default:
		t.out.WriteString(`[` + set.String() + `]`)
	}
	return nil
}

// classRune reads one member of a class.
func classRune(text string) (r rune, rest string, err error) {
	text = strings.TrimPrefix(text, `\`) // an escaped character stands for itself
	if text == "" {
		return 0, "", errBadPattern
	}
	r, n := utf8.DecodeRuneInString(text)
	return r, text[n:], nil
}

// writeRange adds [low, high] to a class, without the slash.
func writeRange(set *strings.Builder, low, high rune) {
	if low <= '/' && '/' <= high {
		writeRange(set, low, '/'-1)
		writeRange(set, '/'+1, high)
		return
	}
	if low <= high {
		fmt.Fprintf(set, `\x{%X}-\x{%X}`, low, high)
	}
}
