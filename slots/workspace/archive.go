package workspace

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
)

// ArchiveArgs says what to pack.
type ArchiveArgs struct {
	Path       string `json:"path,omitempty"`        // a directory or file; default: the workspace
	Format     string `json:"format,omitempty"`      // of Archive: "tar.gz" or "tgz", the default
	MaxBytes   int64  `json:"max_bytes,omitempty"`   // a larger archive is refused with slots.KindTooLarge; 0: none
	MaxEntries int    `json:"max_entries,omitempty"` // what comes later is left out; 0: none
	SHA256     bool   `json:"sha256,omitempty"`
}

// ArchiveReply describes the archive that was sent.
type ArchiveReply struct {
	Path       string `json:"path"`             // from the workspace
	Bytes      int64  `json:"bytes"`            // of the archive
	SHA256     string `json:"sha256,omitempty"` // of the archive, hexadecimal
	EntryCount int    `json:"entry_count"`
	Truncated  bool   `json:"truncated"` // entries beyond MaxEntries were left out
	Omissions         // sockets, devices, FIFOs, what could not be read, what changed meanwhile
}

// Archive writes a gzipped tar archive of a tree to out. See Tar.
func (t *Tree) Archive(ctx context.Context, args ArchiveArgs, out io.Writer) (ArchiveReply, error) {
	if args.Format != "" && args.Format != "tar.gz" && args.Format != "tgz" {
		return ArchiveReply{}, refusal("archive", args.Path, slots.KindBadRequest,
			"Unsupported archive format: %s", shorten(args.Format, 100))
	}
	p := newPacker(t, args, out)
	z := gzip.NewWriter(&p.out) // its header has no time and no name
	reply, err := p.run(ctx, z, z.Close)
	return reply, failure("archive", args.Path, err)
}

// Tar writes a tar archive of a tree to out, with paths relative to the
// directory, or the name of the single file. The same tree gives the same
// bytes: entries are sorted, times are whole seconds, owners are left out.
// Directories, permission bits and links are kept, links as links; hard links
// become files of their own.
func (t *Tree) Tar(ctx context.Context, args ArchiveArgs, out io.Writer) (ArchiveReply, error) {
	p := newPacker(t, args, out)
	reply, err := p.run(ctx, &p.out, func() error { return nil })
	return reply, failure("tar", args.Path, err)
}

// packer makes one archive.
type packer struct {
	t     *Tree
	args  ArchiveArgs
	out   meteredWriter
	tar   *tar.Writer
	reply ArchiveReply
}

func newPacker(t *Tree, args ArchiveArgs, out io.Writer) *packer {
	p := &packer{t: t, args: args, out: meteredWriter{out: out, most: args.MaxBytes, path: args.Path}}
	if args.SHA256 {
		p.out.sum = sha256.New()
	}
	return p
}

// run writes the archive to w, which leads to p.out, and ends w with finish.
func (p *packer) run(ctx context.Context, w io.Writer, finish func() error) (ArchiveReply, error) {
	rel, err := p.t.relative(p.args.Path)
	if err != nil {
		return ArchiveReply{}, err
	}
	p.tar = tar.NewWriter(w)
	dir, err := p.t.openDir(rel)
	switch {
	case err == nil:
		err = p.packTree(ctx, dir)
	case errors.Is(err, unix.ENOTDIR):
		err = p.packOne(ctx, rel)
	}
	if err == nil {
		err = p.tar.Close()
	}
	if err == nil {
		err = finish()
	}
	p.reply.Path, p.reply.Bytes, p.reply.SHA256 = path.Clean(rel), p.out.written, hexSum(p.out.sum)
	return p.reply, err
}

func (p *packer) packTree(ctx context.Context, dir handle) error {
	w := newWalker(dir, heldNames)
	defer w.close()
	for e, ok := w.next(ctx); ok; e, ok = w.next(ctx) {
		if e.leaving {
			continue
		}
		name := w.pathOf(e.name)
		if p.full() {
			p.reply.Truncated = true
			return nil
		}
		isDir, err := p.pack(ctx, w.dir(), e.name, name)
		if err != nil {
			return err
		}
		if isDir {
			if err := w.enter(e.name); err != nil && !gone(err) {
				p.reply.add(name, "directory cannot be read")
			}
		}
	}
	return w.err
}

func (p *packer) full() bool { return p.args.MaxEntries > 0 && p.reply.EntryCount >= p.args.MaxEntries }

// packOne packs the single file that rel leads to, under its own name.
func (p *packer) packOne(ctx context.Context, rel string) error {
	at, err := p.t.place(rel, true)
	if err != nil {
		return err
	}
	defer at.close()
	if !at.exists {
		return unix.ENOENT
	}
	_, err = p.pack(ctx, at.dir, at.name, path.Base(rel))
	return err
}

// pack writes one entry. Trouble with the entry itself is an omission.
func (p *packer) pack(ctx context.Context, dir handle, name, full string) (isDir bool, err error) {
	item, st, err := describe(dir, name, full)
	if err != nil {
		if !gone(err) {
			p.reply.add(full, "cannot be read")
		}
		return false, nil
	}
	h := &tar.Header{Name: full, Mode: int64(st.Mode & 0o777), ModTime: time.Unix(st.Mtim.Sec, 0)}
	switch item.Type {
	case "dir":
		h.Typeflag, h.Name = tar.TypeDir, full+"/"
		return true, p.header(h)
	case "link":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, item.LinkTarget, 0o777
		return false, p.header(h)
	case "file":
		return false, p.packFile(ctx, dir, name, h)
	}
	p.reply.add(full, item.Type)
	return false, nil
}

func (p *packer) header(h *tar.Header) error {
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	p.reply.EntryCount++
	return nil
}

// packFile writes a file with the size that it has when it is opened: one
// that shrinks is filled up with zeros, one that grows is cut.
func (p *packer) packFile(ctx context.Context, dir handle, name string, h *tar.Header) error {
	f, st, err := p.t.openName(dir, name)
	if err != nil {
		if !gone(err) {
			p.reply.add(h.Name, "cannot be read")
		}
		return nil
	}
	defer f.close()
	h.Size = st.Size
	if err := p.header(h); err != nil {
		return err
	}
	r := reading{t: p.t, file: f, out: p.tar, to: st.Size, size: st.Size}
	if err := r.run(ctx); err != nil {
		return err
	}
	if missing := st.Size - r.sent; missing > 0 {
		p.reply.add(h.Name, fmt.Sprintf("shrank while it was read: the last %d bytes are zeros", missing))
		return p.zeros(ctx, missing)
	}
	return nil
}

func (p *packer) zeros(ctx context.Context, n int64) error {
	lent := p.t.buffer()
	defer p.t.release(lent)
	clear(*lent)
	for n > 0 {
		if err := ended(ctx); err != nil {
			return err
		}
		chunk := min(n, bufferSize)
		if _, err := p.tar.Write((*lent)[:chunk]); err != nil {
			return err
		}
		n -= chunk
	}
	return nil
}

// meteredWriter counts, hashes and bounds what passes.
type meteredWriter struct {
	out     io.Writer
	sum     hash.Hash // nil: not wanted
	most    int64     // 0: no bound
	written int64
	path    string
}

// Write refuses what would exceed the bound. The size in the message is what
// the archive had reached by then.
func (m *meteredWriter) Write(b []byte) (int, error) {
	if size := m.written + int64(len(b)); m.most > 0 && size > m.most {
		m.written = size
		return 0, refusal("archive", m.path, slots.KindTooLarge, "Archive too large: %d bytes (max %d)", size, m.most)
	}
	n, err := m.out.Write(b)
	m.written += int64(n)
	if m.sum != nil {
		m.sum.Write(b[:n])
	}
	return n, err
}
