package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"path"

	"golang.org/x/sys/unix"

	"berth/slots"
)

// hashLimit is the size up to which Read computes the sha256 of a whole file.
const hashLimit = 1 << 30

// ReadArgs says which part of a file to read.
type ReadArgs struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty"` // bytes
	Length int64  `json:"length,omitempty"` // bytes at most; 0 and -1: to the end
	Max    int64  `json:"max,omitempty"`    // a larger file is refused with slots.KindTooLarge; 0: none
	SHA256 bool   `json:"sha256,omitempty"` // compute SHA256 and FileSHA256
}

// ReadReply describes what was sent, and the file at the moment it was opened.
type ReadReply struct {
	Path       string  `json:"path"`                  // from the workspace
	Size       int64   `json:"size"`                  // of the whole file, bytes
	Bytes      int64   `json:"bytes"`                 // that were sent; fewer than asked when the file shrank meanwhile
	SHA256     string  `json:"sha256,omitempty"`      // of what was sent, hexadecimal
	FileSHA256 string  `json:"file_sha256,omitempty"` // of the whole file; absent above 1 GiB
	Truncated  bool    `json:"truncated"`             // the file goes on behind what was sent
	MIME       string  `json:"mime"`
	Mode       uint32  `json:"mode"` // permission bits
	Mtime      float64 `json:"mtime"`
}

// Read writes a part of a regular file to out. The part is cut to the size
// that the file had when it was opened, so a file that grows meanwhile does
// not make the answer grow.
func (t *Tree) Read(ctx context.Context, args ReadArgs, out io.Writer) (ReadReply, error) {
	reply, err := t.read(ctx, args, out)
	return reply, failure("read", args.Path, err)
}

func (t *Tree) read(ctx context.Context, args ReadArgs, out io.Writer) (ReadReply, error) {
	if args.Offset < 0 || args.Length < -1 || args.Max < 0 {
		return ReadReply{}, refusal("read", args.Path, slots.KindBadRequest,
			"Invalid range: offset %d, length %d, max %d", args.Offset, args.Length, args.Max)
	}
	rel, err := t.relative(args.Path)
	if err != nil {
		return ReadReply{}, err
	}
	f, st, err := t.openFile(rel)
	if err != nil {
		return ReadReply{}, err
	}
	defer f.close()
	if args.Max > 0 && st.Size > args.Max {
		return ReadReply{}, refusal("read", args.Path, slots.KindTooLarge,
			"File too large: %d bytes (max %d)", st.Size, args.Max)
	}
	start := min(args.Offset, st.Size)
	end := st.Size
	if args.Length > 0 {
		end = start + min(args.Length, st.Size-start)
	}
	r := reading{t: t, file: f, out: out, from: start, to: end, size: st.Size}
	if args.SHA256 {
		r.part = sha256.New()
		if st.Size <= hashLimit {
			r.whole = sha256.New()
		}
	}
	if err := r.run(ctx); err != nil {
		return ReadReply{}, err
	}
	return ReadReply{
		Path: path.Clean(rel), Size: st.Size, Bytes: r.sent, SHA256: hexSum(r.part), FileSHA256: hexSum(r.whole),
		Truncated: end < st.Size, MIME: mimeType(rel, r.head), Mode: st.Mode & 0o7777, Mtime: seconds(st.Mtim),
	}, nil
}

// reading sends the bytes [from, to) of a file in one pass, which covers the
// whole file when its hash is wanted.
type reading struct {
	t        *Tree
	file     handle
	out      io.Writer
	from, to int64
	size     int64
	part     hash.Hash // nil: not wanted
	whole    hash.Hash // nil: not wanted

	head []byte // the file's first bytes
	sent int64
}

func (r *reading) run(ctx context.Context) error {
	lent := r.t.buffer()
	defer r.t.release(lent)
	buf := *lent
	pos, end := r.from, r.to
	if r.whole != nil {
		pos, end = 0, r.size
	}
	if pos > 0 {
		r.head = make([]byte, sniffSize)
		n, err := unix.Pread(int(r.file), r.head, 0)
		r.head = r.head[:max(n, 0)]
		if err != nil {
			return err
		}
	}
	for pos < end {
		if err := ended(ctx); err != nil {
			return err
		}
		chunk := buf[:min(int64(len(buf)), end-pos)]
		n, err := retry(func() (int, error) { return unix.Pread(int(r.file), chunk, pos) })
		if err != nil {
			return err
		}
		if n == 0 { // the file shrank
			return nil
		}
		if pos == 0 {
			r.head = append([]byte(nil), chunk[:min(n, sniffSize)]...)
		}
		if err := r.pass(chunk[:n], pos); err != nil {
			return err
		}
		pos += int64(n)
	}
	return nil
}

// pass handles the bytes read at pos.
func (r *reading) pass(chunk []byte, pos int64) error {
	if r.whole != nil {
		r.whole.Write(chunk)
	}
	n := int64(len(chunk))
	part := chunk[min(n, max(0, r.from-pos)):min(n, max(0, r.to-pos))]
	if len(part) == 0 {
		return nil
	}
	if r.part != nil {
		r.part.Write(part)
	}
	sent, err := r.out.Write(part)
	r.sent += int64(sent)
	return err
}

func hexSum(h hash.Hash) string {
	if h == nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
