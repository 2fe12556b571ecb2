package workspace

import (
	"bytes"
	"context"
	"errors"
	"io"
)

const (
	// maxLine is how much of one line is searched.
	maxLine = 256 << 10
	// maxPassage is the largest file that a multiline search reads.
	maxPassage = 8 << 20
	// maxKept bounds the bytes kept for context lines before a match.
	maxKept = 64 << 10
)

// fileSearch is the search of one file. text is a window of the file that
// begins at a line: lines before pos were searched and are kept for context,
// what is behind the last line break waits for the rest of its line.
type fileSearch struct {
	*grep
	file    handle
	path    string // as printed; "" for a single file
	text    []byte
	pos     int
	start   int64 // offset of text in the file
	matches int
	binary  int64 // offset of a NUL byte; -1: none seen
	skip    bool  // within a line whose beginning was searched already
}

var utf8BOM = []byte("\xef\xbb\xbf")

func (g *grep) search(ctx context.Context, f handle, size int64, full string) error {
	if g.args.Multiline && size > maxPassage {
		g.reply.TooLarge++
		return nil
	}
	g.reply.Searched++
	s := fileSearch{grep: g, file: f, path: full, text: g.buf[:0], binary: -1}
	if g.explicit {
		s.path = ""
	}
	g.print.file(s.path)
	err := s.run(ctx)
	if cap(s.text) <= 2*bufferSize {
		g.buf = s.text[:cap(s.text)]
	}
	if errors.Is(err, errStopFile) {
		err = nil
	}
	if err == nil {
		err = s.finish(full)
	}
	return err
}

// errStopFile ends the search of one file early.
var errStopFile = errors.New("nothing more to learn from this file")

func (s *fileSearch) run(ctx context.Context) error {
	for {
		if err := ended(ctx); err != nil {
			return err
		}
		eof, err := s.fill()
		if err != nil {
			s.reply.Unreadable++ // such as a directory's mode changed; other files go on
			return errStopFile
		}
		if s.binary >= 0 && !s.explicit {
			return errStopFile
		}
		limit := len(s.text)
		if !eof {
			if s.args.Multiline {
				continue
			}
			limit = bytes.LastIndexByte(s.text, '\n') + 1
			if limit <= s.pos && len(s.text)-s.pos >= maxLine {
				limit = len(s.text) // a line too long: search what we have of it
				s.skip = true
			}
		}
		if err := s.searchLines(limit); err != nil {
			return err
		}
		if eof {
			return nil
		}
	}
}

// fill makes room and reads once. eof is true at the end of the file, and for
// a file that grows beyond what a multiline search may read.
func (s *fileSearch) fill() (eof bool, err error) {
	s.roll()
	if len(s.text) == cap(s.text) {
		grown := make([]byte, len(s.text), 2*cap(s.text))
		copy(grown, s.text)
		s.text = grown
	}
	old := len(s.text)
	n, err := s.file.Read(s.text[old:cap(s.text)])
	s.text = s.text[:old+n]
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if s.start == 0 && old == 0 && bytes.HasPrefix(s.text, utf8BOM) {
		s.pos = len(utf8BOM)
		s.print.at(s.text[:s.pos], s.pos)
		s.print.start = s.pos
	}
	if i := bytes.IndexByte(s.text[old:], 0); i >= 0 && s.binary < 0 {
		s.binary = s.start + int64(old+i)
	}
	if s.skip {
		s.skipLine(old)
	}
	return s.args.Multiline && len(s.text) > maxPassage, nil
}

// skipLine drops the rest of a line that was too long.
func (s *fileSearch) skipLine(old int) {
	end := bytes.IndexByte(s.text[old:], '\n')
	drop := len(s.text)
	if end >= 0 {
		s.skip = false
		drop = old + end + 1
	}
	s.pos = drop
	s.print.skipTo(old, drop)
}

// roll forgets what was searched but for context lines.
func (s *fileSearch) roll() {
	keep := s.pos
	for range s.print.before {
		if keep == 0 || s.pos-keep > maxKept {
			break
		}
		keep = bytes.LastIndexByte(s.text[:keep-1], '\n') + 1
	}
	if keep == 0 {
		return
	}
	s.print.roll(s.text, keep)
	s.text = s.text[:copy(s.text[:cap(s.text)], s.text[keep:])]
	s.start += int64(keep)
	s.pos -= keep
}

// searchLines searches text from pos to limit, where a line begins.
func (s *fileSearch) searchLines(limit int) error {
	text := s.text[:limit]
	for s.pos < limit {
		start, end := s.match.find(text, s.pos)
		s.print.trailing(text, min(start, limit))
		if start >= limit {
			s.pos = limit
			return nil
		}
		if err := s.found(text, start, end); err != nil {
			return err
		}
		s.pos = end
	}
	return nil
}

// found handles a matching line, or lines.
func (s *fileSearch) found(text []byte, start, end int) error {
	budget := s.args.MaxResults
	results := s.reply.Matches
	if s.args.Mode != GrepContent {
		results = s.reply.Files
	}
	if budget > 0 && results >= budget && (s.args.Mode == GrepContent || s.matches == 0) {
		return errEnough
	}
	if s.matches == 0 {
		s.reply.Files++
	}
	s.matches++
	s.reply.Matches++
	switch {
	case s.args.Mode == GrepFiles:
		return errStopFile
	case s.args.Mode == GrepContent && s.binary >= 0:
		return errStopFile // finish says so
	case s.args.Mode == GrepContent:
		return s.print.match(text, start, end)
	}
	return nil
}

// finish prints what is known only at the file's end.
func (s *fileSearch) finish(full string) error {
	if s.binary >= 0 {
		s.reply.Binary++
	}
	if s.binary >= 0 && !s.explicit && s.args.Mode == GrepCount && s.matches > 0 {
		s.reply.Files--
		s.reply.Matches -= s.matches
		return nil
	}
	if s.matches == 0 {
		return nil
	}
	switch {
	case s.args.Mode == GrepFiles:
		return s.print.text(full, "\n")
	case s.args.Mode == GrepCount:
		return s.print.count(s.matches)
	case s.binary >= 0:
		return s.print.binary(s.binary, s.explicit)
	}
	return nil
}
