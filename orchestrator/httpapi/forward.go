package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// message is a request that a container is to answer in our place.
type message struct {
	path   string // with its query
	body   io.Reader
	length int64       // of the body, 0: as http.NewRequest finds out
	header http.Header // of the request; nil: that of JSON
	judge  bool        // no failure is passed on: it is an error here
}

// newForwarder makes the client for forwarded requests. Their answers may take
// as long as their readers do.
func newForwarder() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 32, IdleConnTimeout: time.Minute, DisableCompression: true, ExpectContinueTimeout: 10 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// forward has the container of the lease answer the request. An answer that
// may say that the lease is over, or that nothing came, is an error and not
// passed on; all else is, word by word, unless the message says otherwise.
func (s *Server) forward(c echo.Context, lease pool.Lease, m message) error {
	ctx := c.Request().Context()
	r, err := http.NewRequestWithContext(ctx, c.Request().Method, lease.Container.URL+m.path, m.body)
	if err != nil {
		return slots.Errorf(slots.KindBadRequest, "path cannot be asked for").WithExecuted(slots.ExecutedNever)
	}
	r.Header = m.header
	if r.Header == nil {
		r.Header = http.Header{echo.HeaderContentType: typeJSON}
	}
	if m.length != 0 {
		r.ContentLength = m.length
	}
	r.Header.Set(echo.HeaderAuthorization, "Bearer "+lease.Container.Token)
	answer, err := s.forwarder.Do(r)
	if err != nil {
		return s.unanswered(ctx, lease, err)
	}
	defer answer.Body.Close()
	code := answer.StatusCode
	if code == http.StatusConflict || code == http.StatusUnauthorized || m.judge && code >= http.StatusBadRequest {
		return refusal(answer)
	}
	return s.pass(c, answer)
}

// unanswered says why no answer came.
func (s *Server) unanswered(ctx context.Context, lease pool.Lease, cause error) error {
	if ctx.Err() != nil {
		if e, ok := errors.AsType[*slots.Error](context.Cause(ctx)); ok {
			return e.WithExecuted(slots.ExecutedMaybe)
		}
		return slots.Errorf(slots.KindInterrupted, "request was cancelled")
	}
	if lost := s.Pools.Lost(lease.Ref(), slots.ExecutedMaybe); lost != nil {
		return lost
	}
	s.logger.Debug("container did not answer", "container", lease.Container.ID, "error", cause)
	return slots.Errorf(slots.KindContainerUnreachable, "container %s did not answer", lease.Container.ID)
}

// maxRefusal bounds what is read of an answer that is judged here.
const maxRefusal = 64 << 10

// refusal is the error that the container's answer carries, with its status.
func refusal(answer *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxRefusal))
	code := answer.StatusCode
	if err != nil {
		return slots.Errorf(slots.KindContainerUnreachable, "container broke off its answer")
	}
	if code == http.StatusUnauthorized {
		return slots.Errorf(slots.KindInternal, "container does not know our token")
	}
	var failure api.ArtifactFailure
	var ours api.ErrorAnswer
	if json.Unmarshal(text, &ours) == nil && ours.Error.Kind != "" {
		return &httpkit.StatusError{Status: code, Err: ours.Err()}
	}
	if json.Unmarshal(text, &failure) == nil && failure.ErrorKind != "" {
		return &httpkit.StatusError{Status: code, Err: failure.Err()}
	}
	// A HEAD has no text.
	kind := map[int]slots.Kind{
		http.StatusBadRequest: slots.KindBadRequest, http.StatusForbidden: slots.KindDenied,
		http.StatusNotFound: slots.KindNotFound, http.StatusConflict: slots.KindConflict,
	}[code]
	if kind == "" {
		kind = slots.KindContainerUnreachable
	}
	return &httpkit.StatusError{Status: code, Err: slots.Errorf(kind, "container answered %d", code)}
}

// tokenText is the lease's token as it travels in a header.
func tokenText(l pool.Lease) string { return strconv.FormatUint(l.Slot.Token, 10) }

// passed are the headers that travel from a container to its caller.
var passed = []string{
	echo.HeaderContentType, echo.HeaderContentLength, "Content-Range", "Accept-Ranges", "Etag", echo.HeaderLastModified,
	echo.HeaderContentEncoding, "Content-Disposition", api.HeaderChecksum, api.HeaderMode,
	"Berth-Offset", "Berth-Total",
}

// pieceBytes is how much is copied under one deadline.
const pieceBytes = 64 << 10

// pass sends the container's answer on while it comes.
func (s *Server) pass(c echo.Context, answer *http.Response) error {
	w := c.Response()
	for _, name := range passed {
		if values := answer.Header.Values(name); len(values) > 0 {
			w.Header()[http.CanonicalHeaderKey(name)] = values
		}
	}
	if answer.ContentLength >= 0 {
		w.Header().Set(echo.HeaderContentLength, strconv.FormatInt(answer.ContentLength, 10))
	}
	// A short answer goes out with its length, and without trailers that were
	// not announced.
	for name := range answer.Trailer {
		w.Header().Add("Trailer", name)
	}
	s.extend(c, 0)
	w.WriteHeader(answer.StatusCode)
	for {
		n, err := io.CopyN(w, answer.Body, pieceBytes)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // so that nobody takes it for the whole answer
		}
		s.extend(c, int(n))
	}
	maps.Copy(w.Header(), answer.Trailer)
	return nil
}
