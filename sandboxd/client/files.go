package client

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"berth/sandboxd/api"
	"berth/slots"
)

// Place is a file or directory of a slot.
type Place struct {
	SlotID string
	Path   string  // from the workspace, or below /workspace; "" is the workspace
	Token  *uint64 // the lease's token; required while the slot has a lease
}

// in says where the files of the slot are.
func (c *Client) in(p Place) Files {
	f := Files{c: c, root: "/slots/" + url.PathEscape(p.SlotID) + "/files/", header: http.Header{}}
	if p.Token != nil {
		f.header.Set(api.HeaderToken, strconv.FormatUint(*p.Token, 10))
	}
	return f
}

// Files are the files below one path of a server, by the contract of
// /slots/{slot}/files/. Paths are from the workspace, or below /workspace; ""
// is the workspace.
type Files struct {
	c      *Client
	root   string
	header http.Header
}

// FilesAt are the files below the escaped path, which ends in a slash.
func (c *Client) FilesAt(root string) Files { return Files{c: c, root: root} }

func (f Files) request(method, path string) Request {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
		// A dot segment as such would be cleaned away on the way, and the
		// container could not refuse it.
		if part == "." || part == ".." {
			parts[i] = strings.ReplaceAll(part, ".", "%2E")
		}
	}
	r := Request{Method: method, Path: f.root + strings.Join(parts, "/"), Header: http.Header{}, Query: url.Values{}}
	maps.Copy(r.Header, f.header)
	return r
}

// GetOptions says which part of a file is wanted.
type GetOptions struct {
	Offset  int64  // bytes
	Length  int64  // bytes at most; 0: to the end
	SHA256  bool   // ask for File.SHA256
	IfMatch string // refuse with slots.KindConflict unless the file has this sha256
}

// File is a file that is being read. It has to be closed. Reading ends with
// an error other than io.EOF when the file did not come whole.
type File struct {
	io.ReadCloser
	Length int64  // of what is read, in bytes
	Size   int64  // of the file, in bytes
	Mode   uint32 // permission bits
	SHA256 string // of the whole file, hexadecimal; "" unless asked for
}

// GetFile reads a file from a slot. A path outside of the file is
// slots.KindBadRequest, a file that is not there slots.KindNotFound.
func (c *Client) GetFile(ctx context.Context, p Place, o GetOptions) (*File, error) {
	return c.in(p).Get(ctx, p.Path, o)
}

// Get is GetFile.
func (f Files) Get(ctx context.Context, path string, o GetOptions) (*File, error) {
	r := f.request(http.MethodGet, path)
	r.Again = true
	if o.Offset > 0 || o.Length > 0 {
		part := fmt.Sprintf("bytes=%d-", o.Offset)
		if o.Length > 0 {
			part += strconv.FormatInt(o.Offset+o.Length-1, 10)
		}
		r.Header.Set("Range", part)
	}
	if o.SHA256 {
		r.Query.Set("sha256", "1")
	}
	if o.IfMatch != "" {
		r.Header.Set("If-Match", `"`+o.IfMatch+`"`)
	}
	answer, err := f.c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	return newFile(answer)
}

// Stat asks what Get would find: a File without content. What is there and is
// no file is slots.KindBadRequest.
func (f Files) Stat(ctx context.Context, path string) (*File, error) {
	r := f.request(http.MethodHead, path)
	r.Again = true
	answer, err := f.c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return newFile(answer)
}

func newFile(answer *http.Response) (*File, error) {
	f := &File{ReadCloser: answer.Body, Length: answer.ContentLength, Size: answer.ContentLength, SHA256: answer.Header.Get(api.HeaderChecksum)}
	if mode, err := strconv.ParseUint(answer.Header.Get(api.HeaderMode), 8, 32); err == nil {
		f.Mode = uint32(mode)
	}
	if _, size, ok := strings.Cut(answer.Header.Get("Content-Range"), "/"); ok {
		var err error
		if f.Size, err = strconv.ParseInt(size, 10, 64); err != nil {
			_ = answer.Body.Close()
			return nil, slots.Errorf(slots.KindInternal, "decode size of file: %w", err)
		}
	}
	return f, nil
}

// PutOptions says how a file is written.
type PutOptions struct {
	Length  int64  // of the content in bytes; 0: not known
	Mode    uint32 // permission bits; 0: those of the file that is replaced, else the usual ones
	SHA256  string // of the content, hexadecimal; another content is refused and the old one stays
	IfMatch string // refuse with slots.KindConflict unless the file has this sha256, "*": unless there is a file
}

// PutFile replaces a file's content, or makes the file and the directories
// above it. The old content stays on any error. It is sent once: the content
// can be read only once.
func (c *Client) PutFile(ctx context.Context, p Place, content io.Reader, o PutOptions) (api.FileAnswer, error) {
	return c.in(p).Put(ctx, p.Path, content, o)
}

// Put is PutFile.
func (f Files) Put(ctx context.Context, path string, content io.Reader, o PutOptions) (api.FileAnswer, error) {
	r := f.request(http.MethodPut, path)
	r.Stream, r.Length = content, -1
	if o.Length > 0 {
		r.Length = o.Length
	}
	if o.Mode != 0 {
		r.Query.Set("mode", strconv.FormatUint(uint64(o.Mode), 8))
	}
	if o.SHA256 != "" {
		r.Header.Set(api.HeaderChecksum, o.SHA256)
	}
	if o.IfMatch != "" {
		r.Header.Set("If-Match", `"`+o.IfMatch+`"`)
	}
	var answer api.FileAnswer
	err := f.c.call(ctx, r, &answer)
	return answer, err
}

// Tree is a tree that is being read. It has to be closed.
type Tree struct {
	io.ReadCloser
	answer *http.Response
}

// Omitted is how many files were left out of the archive, because no archive
// holds their kind or the slot may not read them. It is known when all was
// read.
func (t *Tree) Omitted() int {
	n, err := strconv.Atoi(t.answer.Trailer.Get(api.HeaderOmitted))
	if err != nil {
		return 0
	}
	return n
}

// GetTar reads a tree as a tar stream, compressed with gzip if asked for.
func (c *Client) GetTar(ctx context.Context, p Place, gzip bool) (*Tree, error) {
	return c.in(p).GetTar(ctx, p.Path, gzip)
}

// GetTar is that of a Client.
func (f Files) GetTar(ctx context.Context, path string, gzip bool) (*Tree, error) {
	r := f.request(http.MethodGet, path)
	r.Again = true
	r.Query.Set("tar", "1")
	if gzip {
		r.Query.Set("gzip", "1")
	}
	answer, err := f.c.send(ctx, r) //nolint:bodyclose // by who closes the Tree
	if err != nil {
		return nil, err
	}
	return &Tree{answer.Body, answer}, nil
}

// PutTar unpacks a tar stream, compressed with gzip or not, below a
// directory. What it would put outside of it is left out and told in the
// answer.
func (c *Client) PutTar(ctx context.Context, p Place, content io.Reader) (api.UntarAnswer, error) {
	return c.in(p).PutTar(ctx, p.Path, content)
}

// PutTar is that of a Client.
func (f Files) PutTar(ctx context.Context, path string, content io.Reader) (api.UntarAnswer, error) {
	r := f.request(http.MethodPut, path)
	r.Stream, r.Length = content, -1
	r.Query.Set("untar", "1")
	var answer api.UntarAnswer
	err := f.c.call(ctx, r, &answer)
	return answer, err
}
