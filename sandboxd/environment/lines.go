package environment

import (
	"net/url"
	"strings"
	"sync"

	"berth/sandboxd/api"
)

// maxOutput bounds how much of a tool's output is kept, in bytes, and maxLine
// a line of it.
const (
	maxOutput = 64 << 10
	maxLine   = 1000
	lastWords = 8 << 10 // of it, in an api.EnvironmentFailure
)

// lines takes output, passes it on by line, and keeps its end.
type lines struct {
	say  func(line string) // nil: nobody listens
	hide []string          // replaced wherever they stand

	mu   sync.Mutex // guards what follows: two streams write
	open strings.Builder
	kept strings.Builder
}

// Write takes a part of the output.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range p {
		if c == '\n' || c == '\r' {
			l.closeLocked()
			continue
		}
		if l.open.Len() < maxLine {
			l.open.WriteByte(c)
		}
	}
	return len(p), nil
}

func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeLocked()
}

func (l *lines) closeLocked() {
	line := strings.TrimRight(strings.ToValidUTF8(l.open.String(), "�"), " \t")
	l.open.Reset()
	if line == "" {
		return
	}
	for _, word := range l.hide {
		line = strings.ReplaceAll(line, word, "****")
	}
	if l.kept.Len() > maxOutput {
		half := l.kept.String()[l.kept.Len()-maxOutput/2:]
		_, half, _ = strings.Cut(half, "\n")
		l.kept.Reset()
		l.kept.WriteString(half)
	}
	l.kept.WriteString(line)
	l.kept.WriteByte('\n')
	if l.say != nil {
		l.say(line)
	}
}

// String is the end of what was written.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.String()
}

// tail cuts text to its last bytes, at a line's beginning.
func tail(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = text[len(text)-most:]
	if _, rest, ok := strings.Cut(text, "\n"); ok {
		return rest
	}
	return strings.ToValidUTF8(text, "")
}

// secrets lists what the URLs of an index hold that nobody is to read.
func secrets(x api.Index) []string {
	var all []string
	for _, at := range append([]string{x.IndexURL, x.NPMRegistry}, x.ExtraIndexURLs...) {
		u, err := url.Parse(at)
		if err != nil || u.User == nil {
			continue
		}
		all = append(all, u.User.String())
		if password, ok := u.User.Password(); ok && password != "" {
			all = append(all, password, url.QueryEscape(password))
		} else if u.User.Username() != "" {
			all = append(all, u.User.Username()) // a token
		}
	}
	return all
}
