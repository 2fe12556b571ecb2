package httpapi

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
	"berth/slots/workspace"
)

// artifactFailure is err in the words of the artifact routes: what the tools
// call "File not found" is "Not found" here.
func artifactFailure(err error) api.ArtifactFailure {
	f := api.NewArtifactFailure(err)
	if e, ok := errors.AsType[*workspace.PathError](err); ok && e.Kind == slots.KindNotFound {
		f.Error = "Not found: " + e.Path
	}
	if e, ok := errors.AsType[*archiveError](err); ok {
		f.Bytes = e.bytes
	}
	return f
}

// bound reads an optional bound of a request.
func bound[T int | int64](name string, asked *T, byDefault, most T) (T, error) {
	if asked == nil {
		return byDefault, nil
	}
	if *asked <= 0 {
		return 0, slots.Errorf(slots.KindBadRequest, "%s must be above 0", name)
	}
	return min(*asked, most), nil
}

// maxEntries is the most entries that max_entries can ask for.
const maxEntries = 1_000_000

// readArtifact answers POST /artifacts/read.
func (s *Server) readArtifact(c echo.Context) error {
	var req api.ReadRequest
	if err := s.readLoose(c, &req); err != nil {
		return err
	}
	most, err := bound("max_bytes", req.MaxBytes, api.DefaultArtifactBytes, s.config.MaxArtifact)
	if err != nil {
		return err
	}
	switch req.Encoding {
	case "":
		req.Encoding = api.EncodingText
	case api.EncodingText, api.EncodingBase64:
	default:
		return slots.Errorf(slots.KindBadRequest, "Unsupported encoding: %s", req.Encoding)
	}
	out := httpkit.GetBuffer()
	defer httpkit.PutBuffer(out)
	args := workspace.ReadArgs{Path: req.Path, Length: most, SHA256: req.IncludeSHA256}
	var reply workspace.ReadReply
	if err := s.Files.Do(c.Request().Context(), req.SlotID, req.Token, "read", args, &reply, nil, &cappedBuffer{b: out, most: most}); err != nil {
		return err
	}
	answer := api.ReadAnswer{
		Success: true, Encoding: req.Encoding, Truncated: reply.Truncated, Bytes: int64(out.Len()), FileSize: reply.Size,
		Path: reply.Path, Mime: reply.MIME, SHA256: reply.SHA256, FileSHA256: reply.FileSHA256,
	}
	if req.Encoding == api.EncodingBase64 {
		answer.Content = base64.StdEncoding.EncodeToString(out.Bytes())
	} else {
		// The encoder makes U+FFFD of each byte that is not UTF-8.
		answer.Content = out.String()
	}
	return s.answer(c, http.StatusOK, &answer)
}

// listArtifacts answers POST /artifacts/list.
func (s *Server) listArtifacts(c echo.Context) error {
	var req api.ListRequest
	if err := s.readLoose(c, &req); err != nil {
		return err
	}
	most, err := bound("max_entries", req.MaxEntries, api.DefaultArtifactEntries, maxEntries)
	if err != nil {
		return err
	}
	args := workspace.ListArgs{Path: req.Path, Recursive: req.Recursive, MaxEntries: most}
	var reply workspace.ListReply
	if err := s.Files.Do(c.Request().Context(), req.SlotID, req.Token, "list", args, &reply, nil, nil); err != nil {
		return err
	}
	entries := make([]api.Entry, len(reply.Entries))
	for i, e := range reply.Entries {
		entries[i] = api.Entry(e)
	}
	return s.answer(c, http.StatusOK, api.ListAnswer{Success: true, Entries: entries, Truncated: reply.Truncated})
}

// archiveArtifacts answers POST /artifacts/archive.
func (s *Server) archiveArtifacts(c echo.Context) error {
	var req api.ArchiveRequest
	if err := s.readLoose(c, &req); err != nil {
		return err
	}
	if req.Format != "" && req.Format != api.FormatTarGz && req.Format != api.FormatTgz {
		return slots.Errorf(slots.KindBadRequest, "Unsupported archive format: %s", req.Format)
	}
	mostBytes, err := bound("max_bytes", req.MaxBytes, api.DefaultArtifactBytes, s.config.MaxArtifact)
	if err != nil {
		return err
	}
	mostEntries, err := bound("max_entries", req.MaxEntries, api.DefaultArtifactEntries, maxEntries)
	if err != nil {
		return err
	}
	out := httpkit.GetBuffer()
	defer httpkit.PutBuffer(out)
	args := workspace.ArchiveArgs{Path: req.Path, MaxEntries: mostEntries}
	var reply workspace.ArchiveReply
	capped := &cappedBuffer{b: out, most: mostBytes}
	err = s.Files.Do(c.Request().Context(), req.SlotID, req.Token, "archive", args, &reply, nil, capped)
	if capped.full != nil {
		return capped.full
	}
	if err != nil {
		return err
	}
	count := &reply.Count
	if reply.Truncated {
		count = nil
	}
	return s.answer(c, http.StatusOK, api.ArchiveAnswer{
		Success: true, Content: out.Bytes(), Encoding: api.EncodingBase64, Format: api.FormatTarGz,
		Bytes: int64(out.Len()), EntryCount: reply.EntryCount, Truncated: reply.Truncated,
		OmittedCount: count, Omitted: omissions(reply.Omissions),
	})
}

func omissions(o workspace.Omissions) []api.Omission {
	var named []api.Omission
	for _, x := range o.Named {
		named = append(named, api.Omission(x))
	}
	return named
}

// archiveError is an archive that got too large.
type archiveError struct {
	bytes int64
	err   *slots.Error
}

// Error returns the message.
func (e *archiveError) Error() string { return e.err.Message }

// Unwrap returns the error that has a kind.
func (e *archiveError) Unwrap() error { return e.err }

// cappedBuffer takes no more than most bytes, whatever the slot sends.
type cappedBuffer struct {
	b    *bytes.Buffer
	most int64
	full *archiveError // why it takes no more
}

// Write takes p, or fails when that is too much.
func (c *cappedBuffer) Write(p []byte) (int, error) {
	if n := int64(c.b.Len() + len(p)); n > c.most && c.full == nil {
		c.full = &archiveError{n, slots.Errorf(slots.KindTooLarge, "Archive too large: %d bytes (max %d)", n, c.most)}
	}
	if c.full != nil {
		return 0, c.full
	}
	return c.b.Write(p)
}
