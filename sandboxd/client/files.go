package client

import (
	"context"
	"fmt"
	"io"
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

func (p Place) request(method string) request {
	parts := strings.Split(p.Path, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
		// A dot segment as such would be cleaned away on the way, and the
		// container could not refuse it.
		if part == "." || part == ".." {
			parts[i] = strings.ReplaceAll(part, ".", "%2E")
		}
	}
	r := request{
		method: method, path: "/slots/" + url.PathEscape(p.SlotID) + "/files/" + strings.Join(parts, "/"),
		header: http.Header{}, query: url.Values{},
	}
	if p.Token != nil {
		r.header.Set(api.HeaderToken, strconv.FormatUint(*p.Token, 10))
	}
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
	r := p.request(http.MethodGet)
	r.again = true
	if o.Offset > 0 || o.Length > 0 {
		part := fmt.Sprintf("bytes=%d-", o.Offset)
		if o.Length > 0 {
			part += strconv.FormatInt(o.Offset+o.Length-1, 10)
		}
		r.header.Set("Range", part)
	}
	if o.SHA256 {
		r.query.Set("sha256", "1")
	}
	if o.IfMatch != "" {
		r.header.Set("If-Match", `"`+o.IfMatch+`"`)
	}
	answer, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	f := &File{ReadCloser: answer.Body, Length: answer.ContentLength, Size: answer.ContentLength, SHA256: answer.Header.Get(api.HeaderChecksum)}
	if mode, err := strconv.ParseUint(answer.Header.Get(api.HeaderMode), 8, 32); err == nil {
		f.Mode = uint32(mode)
	}
	if _, size, ok := strings.Cut(answer.Header.Get("Content-Range"), "/"); ok {
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
	r := p.request(http.MethodPut)
	r.stream, r.length = content, -1
	if o.Length > 0 {
		r.length = o.Length
	}
	if o.Mode != 0 {
		r.query.Set("mode", strconv.FormatUint(uint64(o.Mode), 8))
	}
	if o.SHA256 != "" {
		r.header.Set(api.HeaderChecksum, o.SHA256)
	}
	if o.IfMatch != "" {
		r.header.Set("If-Match", `"`+o.IfMatch+`"`)
	}
	var answer api.FileAnswer
	err := c.call(ctx, r, &answer)
	return answer, err
}

// GetTar reads a tree as a tar stream, compressed with gzip if asked for. It
// has to be closed.
func (c *Client) GetTar(ctx context.Context, p Place, gzip bool) (io.ReadCloser, error) {
	r := p.request(http.MethodGet)
	r.again = true
	r.query.Set("tar", "1")
	if gzip {
		r.query.Set("gzip", "1")
	}
	answer, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// PutTar unpacks a tar stream, compressed with gzip or not, below a
// directory. What it would put outside of it is left out and told in the
// answer.
func (c *Client) PutTar(ctx context.Context, p Place, content io.Reader) (api.UntarAnswer, error) {
	r := p.request(http.MethodPut)
	r.stream, r.length = content, -1
	r.query.Set("untar", "1")
	var answer api.UntarAnswer
	err := c.call(ctx, r, &answer)
	return answer, err
}
