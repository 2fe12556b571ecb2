package workspace

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"berth/slots"
)

// maxEdit is the largest file that Edit takes when it is not told.
const maxEdit = 10 << 20

// EditArgs says what to replace.
type EditArgs struct {
	Path       string `json:"path"`
	Old        string `json:"old"` // must occur exactly once, unless ReplaceAll
	New        string `json:"new"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
	Max        int64  `json:"max,omitempty"` // largest file, before and after, in bytes; default 10 MiB
}

// EditReply describes the change.
type EditReply struct {
	Path         string `json:"path"` // from the workspace
	Replacements int    `json:"replacements"`
	Diff         string `json:"diff"` // the first changes as unified hunks, cut to a few KiB
	Size         int64  `json:"size"` // of the file now, bytes
}

// Edit replaces text in a file, byte for byte: line breaks, encoding and mode
// stay as they are, and the change is atomic. Text that is missing or not
// unique is slots.KindBadRequest, with what would help to find it.
func (t *Tree) Edit(ctx context.Context, args EditArgs) (EditReply, error) {
	reply, err := t.edit(ctx, args)
	return reply, failure("edit", args.Path, err)
}

func (t *Tree) edit(ctx context.Context, args EditArgs) (EditReply, error) {
	if args.Max == 0 {
		args.Max = maxEdit
	}
	rel, err := t.relative(args.Path)
	if err != nil {
		return EditReply{}, err
	}
	p, err := t.placeForFile(rel, false)
	if err != nil {
		return EditReply{}, err
	}
	defer p.close()
	content, err := t.readWhole(ctx, &p, args)
	if err != nil {
		return EditReply{}, err
	}
	count, err := checkEdit(content, args)
	if err != nil {
		return EditReply{}, err
	}
	if size := int64(len(content)) + int64(count)*int64(len(args.New)-len(args.Old)); size > args.Max {
		return EditReply{}, tooLarge(args, size)
	}
	changed := bytes.ReplaceAll(content, []byte(args.Old), []byte(args.New))
	s, err := stage(p.dir, 0, &p)
	if err != nil {
		return EditReply{}, err
	}
	defer s.discard()
	if _, err := s.file.Write(changed); err != nil {
		return EditReply{}, err
	}
	if err := s.commit(p.name, true); err != nil {
		return EditReply{}, err
	}
	return EditReply{
		Path: path.Clean(rel), Replacements: count, Size: int64(len(changed)),
		Diff: editDiff(content, args.Old, args.New),
	}, nil
}

// readWhole reads the file at p, which must not be larger than args.Max.
func (t *Tree) readWhole(ctx context.Context, p *place, args EditArgs) ([]byte, error) {
	f, st, err := t.openName(p.dir, p.name)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if st.Size > args.Max {
		return nil, tooLarge(args, st.Size)
	}
	p.stat = st // the mode to keep is that of the file that was read
	var content bytes.Buffer
	content.Grow(int(st.Size))
	r := reading{t: t, file: f, out: io.Writer(&content), to: st.Size, size: st.Size}
	err = r.run(ctx)
	return content.Bytes(), err
}

func tooLarge(args EditArgs, size int64) error {
	return refusal("edit", args.Path, slots.KindTooLarge, "File too large: %d bytes (max %d)", size, args.Max)
}

// checkEdit counts the replacements, or says why the edit cannot be made.
func checkEdit(content []byte, args EditArgs) (int, error) {
	bad := func(format string, values ...any) (int, error) {
		return 0, refusal("edit", args.Path, slots.KindBadRequest, format, values...)
	}
	name := shorten(args.Path, maxNameInText)
	if args.Old == "" {
		return bad("The text to replace is empty")
	}
	if args.Old == args.New {
		return bad("The text to replace and its replacement are the same")
	}
	count := bytes.Count(content, []byte(args.Old))
	switch {
	case count == 0:
		return bad("Text not found in %s%s", name, nearMiss(content, args.Old))
	case count > 1 && !args.ReplaceAll:
		return bad("Text found %d times in %s, on lines %s: add surrounding text to make it unique, or set replace_all",
			count, name, lineList(content, args.Old))
	}
	return count, nil
}

// lineList names the lines of the first ten occurrences.
func lineList(content []byte, old string) string {
	const most = 10
	var list []string
	line, pos := 1, 0
	for i := bytes.Index(content, []byte(old)); i >= 0; i = bytes.Index(content[pos:], []byte(old)) {
		if len(list) == most {
			return strings.Join(list, ", ") + ", ..."
		}
		line += bytes.Count(content[pos:pos+i], []byte{'\n'})
		list = append(list, strconv.Itoa(line))
		line += strings.Count(old, "\n")
		pos += i + len(old)
	}
	return strings.Join(list, ", ")
}

// nearMiss says what is nearly the text: the usual mistakes are line endings
// and indentation.
func nearMiss(content []byte, old string) string {
	if crlf := strings.ReplaceAll(old, "\n", "\r\n"); crlf != old && bytes.Contains(content, []byte(crlf)) {
		return ": the file ends its lines with CRLF"
	}
	first, _, _ := strings.Cut(strings.TrimLeft(old, " \t\r\n"), "\n")
	first = strings.TrimSpace(first)
	if first == "" {
		return ""
	}
	line := 1
	for text := range bytes.Lines(content) {
		if string(bytes.TrimSpace(text)) == first {
			return fmt.Sprintf(": line %d is like its first line, but the whitespace or the following lines differ", line)
		}
		line++
	}
	return ""
}
