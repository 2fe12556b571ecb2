package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// openLog opens the log to write more to it, after it has put a long one
// aside, and tells where the new lines begin.
func (d directory) openLog(most int64) (*os.File, int64, error) {
	st, err := os.Stat(d.log())
	if err == nil && st.Size() > most {
		err = os.Rename(d.log(), d.join("log.1"))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("put log aside: %w", err)
	}
	f, err := os.OpenFile(d.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	from, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	return f, from, nil
}

// line is one of sandboxd's log. What is no JSON, as the complaint about its
// arguments or a panic, is not one.
type line struct {
	Level   string `json:"@level"`
	Message string `json:"@message"`
	Address string `json:"address"`
	Error   string `json:"error"`
}

const (
	announceBytes = 256 << 10 // of a log, in which the announcement is
	wordsBytes    = 8 << 10   // of a log's end, in which the last words are
	maxWords      = 2 << 10   // bytes of last words
)

// announced returns the address that the process has announced, or "".
func (d directory) announced(from int64) string {
	f, err := os.Open(d.log())
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, from, announceBytes))
	if err != nil {
		return ""
	}
	for one := range bytes.Lines(text) {
		var l line
		if json.Unmarshal(one, &l) == nil && l.Message == "serving" {
			return l.Address
		}
	}
	return ""
}

// lastWords is the error that the process logged last, or the end of its log
// when that is no line of a log.
func (d directory) lastWords(from int64) string {
	f, err := os.Open(d.log())
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	from = max(from, st.Size()-wordsBytes)
	text, err := io.ReadAll(io.NewSectionReader(f, from, wordsBytes))
	if err != nil {
		return ""
	}
	return words(string(text))
}

func words(text string) string {
	text = strings.TrimSpace(text)
	lines := strings.Split(text, "\n")
	for i, last := range slices.Backward(lines) {
		var l line
		if json.Unmarshal([]byte(last), &l) != nil {
			// A panic is many lines, of which the first says most.
			begin := i
			for begin > 0 && !strings.HasPrefix(lines[begin-1], "{") {
				begin--
			}
			plain := strings.TrimSpace(strings.Join(lines[begin:], "\n"))
			return cut(plain)
		}
		if l.Error != "" {
			return cut(l.Error)
		}
	}
	return ""
}

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxWords)], "") }
