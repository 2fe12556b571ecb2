package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/workspace"
)

// What the file tools take in one call. Larger files travel as artifacts.
const (
	maxFileChars = 100_000   // characters of a text
	maxFileBytes = 5_000_000 // bytes of a base64 answer
	readChunk    = 1 << 20   // bytes per step through a long file
	sniffLen     = 8 << 10   // bytes looked at to tell text from binary
)

// readFile answers the text of a file.
//
//	path      required
//	offset    first line, counted from 1; default 1
//	limit     number of lines; default all
//	encoding  "base64" answers the bytes, whatever they are, up to 5000000
//
// Bytes that are not UTF-8 become U+FFFD and metadata.replaced is true. A
// binary file is refused unless base64 was asked for.
type readFile struct{}

// Name is "read_file".
func (readFile) Name() string { return "read_file" }

// Run reads the file.
func (readFile) Run(ctx context.Context, s Slot, c Call) api.Result {
	a := parseArgs(c.Args)
	path := a.need("path")
	first := max(1, a.count("offset", 1, 0, 1<<53))
	limit := a.count("limit", -1, 1, 1<<53)
	lossless := a.word("encoding", "text", "base64") == "base64"
	if lossless && (a.fields["offset"] != nil || a.fields["limit"] != nil) {
		a.refuse("encoding", "cannot be base64 together with offset or limit")
	}
	if a.err != nil {
		return refused(a.err)
	}
	w := &lines{skip: first - 1, take: limit, room: maxFileChars * utf8.UTFMax}
	if lossless {
		w.room = maxFileBytes
	}
	reply, err := w.read(ctx, s, path)
	if err != nil {
		return c.fileFailed(ctx, path, err)
	}
	details := map[string]any{"size": reply.Size}
	if reply.MIME != "" {
		details["mime"] = reply.MIME
	}
	if lossless {
		if w.full {
			return c.fileFailed(ctx, path, fileTooLarge(reply.Size, maxFileBytes))
		}
		details["encoding"] = "base64"
		return fileDone(base64.StdEncoding.EncodeToString(w.kept), path, details)
	}
	// The kind of a file is asked first: "too large" would send the caller to
	// offset and limit, which do not help with a binary file.
	if binary(w.kept) {
		return c.fileFailed(ctx, path, slots.Errorf(slots.KindBadRequest,
			`Binary file: %s (%s, %d bytes); read it with encoding "base64"`, path, reply.MIME, reply.Size))
	}
	text := strings.ToValidUTF8(string(w.kept), "\uFFFD")
	if w.full || utf8.RuneCountInString(text) > maxFileChars {
		return c.fileFailed(ctx, path, fileTooLarge(reply.Size, maxFileChars))
	}
	if !utf8.Valid(w.kept) {
		details["replaced"] = true
	}
	if first > 1 || limit > 0 {
		details["first_line"], details["lines"], details["has_more"] = first, w.lines(), w.more
	}
	return fileDone(text, path, details)
}

func fileTooLarge(size int64, most int) error {
	return slots.Errorf(slots.KindTooLarge, "File too large: %d bytes (max %d)", size, most)
}

// binary reports whether the bytes look like no text.
func binary(p []byte) bool { return bytes.IndexByte(p[:min(len(p), sniffLen)], 0) >= 0 }

// lines keeps a range of lines out of what is written to it.
type lines struct {
	skip int // lines to leave out
	take int // lines to keep; < 0 means all
	room int // bytes to keep at most
	kept []byte
	seen int64 // bytes of the last step
	more bool  // something follows the range
	full bool  // the range has more bytes than there is room
}

// read walks through the file until the range is complete. Steps keep the
// work bounded when the range is near the start of a long file.
func (l *lines) read(ctx context.Context, s Slot, path string) (workspace.ReadReply, error) {
	step := int64(readChunk)
	if l.skip == 0 && l.take < 0 {
		step = int64(l.room) + 1
	}
	var reply workspace.ReadReply
	for at := int64(0); ; at += l.seen {
		l.seen = 0
		err := s.Do(ctx, "read", workspace.ReadArgs{Path: path, Offset: at, Length: step}, &reply, nil, l)
		if err != nil {
			return reply, err
		}
		if l.more || l.full || l.seen == 0 || at+l.seen >= reply.Size {
			return reply, nil
		}
	}
}

// Write takes the next bytes of the file. It never fails.
func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	l.seen += int64(n)
	for l.skip > 0 && len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			return n, nil
		}
		p = p[end+1:]
		l.skip--
	}
	for len(p) > 0 && !l.full {
		if l.take == 0 {
			l.more = true
			break
		}
		part := p
		if l.take > 0 {
			if end := bytes.IndexByte(p, '\n'); end >= 0 {
				part = p[:end+1]
				l.take--
			}
		}
		if len(l.kept)+len(part) > l.room {
			l.full = true
			break
		}
		l.kept = append(l.kept, part...)
		p = p[len(part):]
	}
	return n, nil
}

// lines counts what was kept; a last line without its end counts.
func (l *lines) lines() int {
	n := bytes.Count(l.kept, []byte{'\n'})
	if len(l.kept) > 0 && l.kept[len(l.kept)-1] != '\n' {
		n++
	}
	return n
}
