package httpapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
	"berth/slots/workspace"
)

// place is the file or tree that a request of the raw plane is about.
type place struct {
	s      *Server
	slotID string
	token  *uint64
	path   string
}

func (s *Server) place(c echo.Context) (place, error) {
	p := place{s: s}
	var err error
	if p.slotID, err = param(c, "slot"); err != nil {
		return p, err
	}
	if p.path, err = param(c, "*"); err != nil {
		return p, err
	}
	if !utf8.ValidString(p.path) {
		// On its way to the slot it would become another name.
		return p, slots.Errorf(slots.KindBadRequest, "path must be UTF-8")
	}
	p.token, err = tokenOf(c.Request())
	return p, err
}

// pipes are where an operation reads from and writes to; nil is nothing.
type pipes struct {
	in  io.Reader
	out io.Writer
}

// do runs an operation on the place.
func (p place) do(ctx context.Context, op string, args, reply any, io pipes) error {
	return p.s.Files.Do(ctx, p.slotID, p.token, op, args, reply, io.in, io.out)
}

// flag reads a switch of the query: "1" and "true" turn it on.
func flag(c echo.Context, name string) bool {
	v := c.QueryParam(name)
	return v == "1" || v == "true"
}

// getFile answers GET and HEAD of a file, and GET of a tree with ?tar=1.
func (s *Server) getFile(c echo.Context) error {
	p, err := s.place(c)
	if err != nil {
		return err
	}
	var st workspace.StatReply
	ctx := c.Request().Context()
	if err := p.do(ctx, "stat", workspace.StatArgs{Path: p.path}, &st, pipes{}); err != nil {
		return err
	}
	if flag(c, "tar") {
		return s.getTree(c, p)
	}
	if st.Type != "file" {
		return slots.Errorf(slots.KindBadRequest, "Not a file: %s", p.path)
	}
	r := c.Request()
	h := c.Response().Header()
	etag := ""
	if flag(c, "sha256") || conditional(r) {
		sum, err := p.sum(ctx)
		if err != nil {
			return err
		}
		etag = quote(sum)
		h.Set("ETag", etag)
		h.Set(api.HeaderChecksum, sum)
	}
	if code := precondition(r, etag); code == http.StatusNotModified {
		c.Response().WriteHeader(code)
		return nil
	} else if code != 0 {
		return &httpkit.StatusError{Status: code, Err: slots.Errorf(slots.KindConflict, "file is not the one that If-Match names")}
	}
	part, code, err := requested(r, st.Size, etag)
	if err != nil {
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", st.Size))
		return err
	}
	h.Set(echo.HeaderContentType, cmp.Or(st.MIME, echo.MIMEOctetStream))
	h.Set(echo.HeaderContentLength, strconv.FormatInt(part.length, 10))
	h.Set(echo.HeaderLastModified, time.UnixMilli(int64(st.Mtime*1e3)).UTC().Format(http.TimeFormat))
	h.Set("Accept-Ranges", "bytes")
	h.Set(api.HeaderMode, fmt.Sprintf("%04o", st.Mode))
	h.Set(echo.HeaderXContentTypeOptions, "nosniff")
	if code == http.StatusPartialContent {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.start, part.start+part.length-1, st.Size))
	}
	if r.Method == http.MethodHead || part.length == 0 {
		c.Response().WriteHeader(code)
		return nil
	}
	return p.send(c, part, code, etag)
}

// send streams a part of the file. Its length was announced: a file that
// shrinks meanwhile, or is not the one of the ETag any more, cuts the answer
// off.
func (p place) send(c echo.Context, part span, code int, etag string) error {
	ctx := c.Request().Context()
	whole := etag != "" && code == http.StatusOK
	args := workspace.ReadArgs{Path: p.path, Offset: part.start, Length: part.length, SHA256: whole}
	var reply workspace.ReadReply
	out := &lateWriter{w: c.Response(), begin: func() {}, code: code}
	counted := &exactWriter{w: out, rest: part.length}
	err := p.do(ctx, "read", args, &reply, pipes{out: counted})
	switch {
	case err == nil && counted.rest > 0:
		err = slots.Errorf(slots.KindConflict, "file became shorter while it was read")
	case err == nil && whole && quote(reply.SHA256) != etag:
		err = slots.Errorf(slots.KindConflict, "file changed while it was read")
	}
	if err != nil {
		forget(c.Response().Header())
	}
	return out.end(err)
}

// forget takes back what was said about a file that is not sent.
func forget(h http.Header) {
	for _, name := range []string{echo.HeaderContentLength, "Content-Range", "ETag", echo.HeaderLastModified, "Accept-Ranges", api.HeaderMode, api.HeaderChecksum} {
		h.Del(name)
	}
}

// exactWriter passes rest bytes on and refuses more.
type exactWriter struct {
	w    io.Writer
	rest int64
}

var errTooMuch = errors.New("more bytes than announced")

// Write passes p on.
func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.rest {
		return 0, errTooMuch
	}
	n, err := e.w.Write(p)
	e.rest -= int64(n)
	return n, err
}

// sum is the sha256 of the whole file, hexadecimal.
func (p place) sum(ctx context.Context) (string, error) {
	var reply workspace.ReadReply
	err := p.do(ctx, "read", workspace.ReadArgs{Path: p.path, Length: 1, SHA256: true}, &reply, pipes{out: io.Discard})
	if err != nil {
		return "", err
	}
	if reply.FileSHA256 == "" {
		return "", slots.Errorf(slots.KindTooLarge, "file of %d bytes is too large for a checksum", reply.Size)
	}
	return reply.FileSHA256, nil
}

func quote(sum string) string { return `"` + sum + `"` }

// conditional reports whether the request asks for something about the ETag.
func conditional(r *http.Request) bool {
	return r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != "" || r.Header.Get("If-Range") != ""
}

// precondition is the status that ends the request early, or 0.
func precondition(r *http.Request, etag string) int {
	if want := r.Header.Get("If-Match"); want != "" && !lists(want, etag) {
		return http.StatusPreconditionFailed
	}
	if known := r.Header.Get("If-None-Match"); known != "" && lists(known, etag) {
		return http.StatusNotModified
	}
	return 0
}

// lists reports whether a list of ETags names the ETag.
func lists(list, etag string) bool {
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimPrefix(strings.TrimSpace(part), "W/")
		if part == "*" || part == etag {
			return true
		}
	}
	return false
}

// getTree answers with a tree as a tar stream. What was left out is known
// only at its end and told in trailers.
func (s *Server) getTree(c echo.Context, p place) error {
	w := c.Response()
	op, kind := "tar", "application/x-tar"
	if flag(c, "gzip") {
		op, kind = "archive", "application/gzip"
	}
	out := &lateWriter{w: w, begin: func() {
		w.Header().Set(echo.HeaderContentType, kind)
		w.Header().Set("Trailer", api.HeaderEntries+", "+api.HeaderOmitted)
	}}
	if c.Request().Method == http.MethodHead {
		return out.end(nil)
	}
	var reply workspace.ArchiveReply
	err := p.do(c.Request().Context(), op, workspace.ArchiveArgs{Path: p.path}, &reply, pipes{out: out})
	if err == nil {
		out.start()
		w.Header().Set(api.HeaderEntries, strconv.Itoa(reply.EntryCount))
		w.Header().Set(api.HeaderOmitted, strconv.Itoa(reply.Count))
	}
	return out.end(err)
}

// putFile answers PUT of a file, and of a tree with ?untar=1.
func (s *Server) putFile(c echo.Context) error {
	body := s.patient(c.Request())
	err := s.takeFile(c, body)
	if err != nil {
		body.Refuse(c.Request())
	}
	return err
}

func (s *Server) takeFile(c echo.Context, in io.Reader) error {
	p, err := s.place(c)
	if err != nil {
		return err
	}
	r := c.Request()
	if r.ContentLength > s.config.MaxUpload {
		return httpkit.TooLarge(s.config.MaxUpload)
	}
	if coding := r.Header.Get(echo.HeaderContentEncoding); coding != "" && !strings.EqualFold(coding, "identity") {
		return slots.Errorf(slots.KindBadRequest, "a body with a content encoding is not taken: send the bytes of the file")
	}
	if r.Header.Get("If-None-Match") != "" || r.Header.Get("Content-Range") != "" {
		return slots.Errorf(slots.KindBadRequest, "PUT takes neither If-None-Match nor Content-Range")
	}
	sum, err := claimed(r.Header)
	if err != nil {
		return err
	}
	body := &uploadReader{in: in, most: s.config.MaxUpload, sum: sum, digest: sha256.New()}
	if sum == nil {
		body.digest = nil
	}
	if flag(c, "untar") {
		return s.putTree(c, p, body)
	}
	return s.putContent(c, p, body)
}

func (s *Server) putContent(c echo.Context, p place, body *uploadReader) error {
	args := workspace.WriteArgs{Path: p.path, SHA256: hex.EncodeToString(body.sum), Max: s.config.MaxUpload}
	if text := c.QueryParam("mode"); text != "" {
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil || mode == 0 || mode > 0o7777 {
			return slots.Errorf(slots.KindBadRequest, "mode must be octal permission bits like 0644")
		}
		args.Mode = uint32(mode) & 0o777
	}
	if want := c.Request().Header.Get("If-Match"); want != "" {
		args.IfMatch = strings.Trim(want, `" `)
	}
	var reply workspace.WriteReply
	err := p.do(c.Request().Context(), "write", args, &reply, pipes{in: body})
	if err = body.blame(err); err != nil {
		if args.IfMatch != "" && slots.AsError(err).Kind == slots.KindConflict {
			return &httpkit.StatusError{Status: http.StatusPreconditionFailed, Err: slots.AsError(err)}
		}
		return err
	}
	code := http.StatusOK
	if reply.Created {
		code = http.StatusCreated
	}
	c.Response().Header().Set("ETag", quote(reply.SHA256))
	return s.answer(c, code, api.FileAnswer(reply))
}

func (s *Server) putTree(c echo.Context, p place, body *uploadReader) error {
	var reply workspace.UntarReply
	err := p.do(c.Request().Context(), "untar", workspace.UntarArgs{Path: p.path}, &reply, pipes{in: body})
	if err = body.blame(err); err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, api.UntarAnswer{
		Entries: reply.Entries, Bytes: reply.Bytes, OmittedCount: reply.Count, Omitted: omissions(reply.Omissions),
	})
}

// claimed reads the checksum that the client says its body has; nil for none.
func claimed(h http.Header) ([]byte, error) {
	if text := h.Get(api.HeaderChecksum); text != "" {
		sum, err := hex.DecodeString(text)
		if err != nil || len(sum) != sha256.Size {
			return nil, slots.Errorf(slots.KindBadRequest, "%s must be %d hexadecimal digits", api.HeaderChecksum, 2*sha256.Size)
		}
		return sum, nil
	}
	for part := range strings.SplitSeq(h.Get("Digest"), ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		if !strings.EqualFold(name, "sha-256") {
			continue
		}
		sum, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(sum) != sha256.Size {
			return nil, slots.Errorf(slots.KindBadRequest, "Digest must be sha-256= and %d bytes in base64", sha256.Size)
		}
		return sum, nil
	}
	return nil, nil
}
