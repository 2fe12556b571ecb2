package httpapi

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// headerKey names a request that may be sent again, see poolapi.HeaderKey.
//
// What a call's key names is its execution, in the journal of its container:
// that survives a restart here and there. All other answers are kept in memory
// here, for keptFor and within bounds, and do not survive one; but a lease that
// was acquired with a key bears it, so that who asks again for a further slot
// gets that one. An answer that says that nothing was done, or that the request
// may be sent again, is not kept. Of one for which there is no room it is kept
// that it was given: who asks again is told so, and nothing is done twice.
const headerKey = poolapi.HeaderKey

// keyed is what a route does with a request's key.
type keyed int

const (
	keyIgnored keyed = iota // to ask twice is to ask once anyhow
	keyAnswers              // the answer is kept
	keyLeases               // so it is, and a lease bears the key
	keyNames                // it names executions
)

// Bounds of kept answers.
const (
	keptFor     = 10 * time.Minute
	keptAnswers = 10_000
	keptBytes   = 16 << 20
	keptBody    = keptBytes / 16 // of one answer: none pushes many others out
	maxKey      = 255
)

// keyOf is the request's key, "" when it has none.
func keyOf(r *http.Request) (string, error) {
	values := r.Header.Values(headerKey)
	if len(values) == 0 {
		return "", nil
	}
	printable := func(b byte) bool { return b > ' ' && b <= '~' }
	if len(values) > 1 || values[0] == "" || len(values[0]) > maxKey || slices.ContainsFunc([]byte(values[0]), func(b byte) bool { return !printable(b) }) {
		return "", slots.Errorf(slots.KindBadRequest, headerKey+" must be one text of 1 to %d printable ASCII characters", maxKey)
	}
	return values[0], nil
}

// keyLabel is the key as a lease bears it.
func keyLabel(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// kept is one request that has a key, and its answer.
type kept struct {
	key   string
	asked [sha256.Size]byte // of all that it asks for
	done  chan struct{}     // closed when what is below is there
	found bool              // without its answer the request is as good as new: a lease bears the key
	final bool              // the answer is kept
	at    time.Time
	lost  int // bytes of its body, when that is not kept any more
	recording
}

// recording is an answer that was written here. It is an http.ResponseWriter.
type recording struct {
	status int
	header http.Header
	body   bytes.Buffer
}

// Header is http.ResponseWriter's.
func (r *recording) Header() http.Header { return r.header }

// WriteHeader is http.ResponseWriter's.
func (r *recording) WriteHeader(status int) { r.status = status }

// Write is http.ResponseWriter's.
func (r *recording) Write(p []byte) (int, error) { return r.body.Write(p) }

// Flush is http.Flusher's: what comes in pieces is kept whole.
func (r *recording) Flush() {}

// answers are the requests with keys that are under way, and the kept answers.
type answers struct {
	mu    sync.Mutex // guards what is below
	byKey map[string]*kept
	order list.List // of those that are kept, the oldest first
	whole list.List // of those whose answer is there, in the same order
	bytes int       // of their answers
}

// begin finds the request of the key, or makes it: then it is mine to carry
// out, and end has to be called.
func (a *answers) begin(key string, asked [sha256.Size]byte) (k *kept, mine bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetLocked(time.Now())
	if k, ok := a.byKey[key]; ok {
		if k.asked != asked {
			return nil, false, slots.Errorf(slots.KindConflict, headerKey+" was used for another request")
		}
		return k, false, nil
	}
	k = &kept{key: key, asked: asked, done: make(chan struct{})}
	k.header = http.Header{}
	a.byKey[key] = k
	return k, true, nil
}

// end lets those go on who wait for the answer.
func (a *answers) end(k *kept, final bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k.final, k.at = final, time.Now()
	close(k.done)
	if !final {
		delete(a.byKey, k.key)
		return
	}
	a.order.PushBack(k)
	switch n := k.body.Len(); {
	case n > keptBody:
		k.lost, k.body = n, bytes.Buffer{}
	case n > 0:
		a.whole.PushBack(k)
		a.bytes += n
	}
	a.forgetLocked(k.at)
}

func (a *answers) forgetLocked(now time.Time) {
	for a.bytes > keptBytes {
		k := a.whole.Front().Value.(*kept) // the list holds nothing else
		a.dropLocked(k)
		k.lost, k.body = k.body.Len(), bytes.Buffer{}
		if k.found && a.byKey[k.key] == k {
			delete(a.byKey, k.key)
		}
	}
	for e := a.order.Front(); e != nil; e = a.order.Front() {
		k := e.Value.(*kept) // the list holds nothing else
		if a.order.Len() <= keptAnswers && now.Sub(k.at) < keptFor {
			return
		}
		a.order.Remove(e)
		if k.body.Len() > 0 {
			a.dropLocked(k)
		}
		if a.byKey[k.key] == k {
			delete(a.byKey, k.key)
		}
	}
}

// dropLocked takes the oldest one out of those whose answer is there.
func (a *answers) dropLocked(k *kept) {
	a.whole.Remove(a.whole.Front())
	a.bytes -= k.body.Len()
}

// body is that of the answer, which was given before.
func (a *answers) body(k *kept) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k.lost == 0 {
		return k.body.Bytes(), nil
	}
	executed := slots.ExecutedMaybe
	if k.status < http.StatusBadRequest {
		executed = slots.ExecutedYes
	}
	return nil, slots.Errorf(slots.KindConflict,
		"the request of this "+headerKey+" was answered with status %d, and its answer of %d bytes is not kept any more", k.status, k.lost).WithExecuted(executed)
}

// once gives requests with the same key one answer.
func (s *Server) once(r route) echo.HandlerFunc {
	return func(c echo.Context) error {
		key, err := keyOf(c.Request())
		if key == "" || err != nil {
			if err == nil {
				err = r.handle(c)
			}
			return err
		}
		b, err := s.readBody(c)
		if err != nil {
			return err
		}
		body := bytes.Clone(b.Bytes())
		httpkit.PutBuffer(b)
		asked := fingerprint(c.Request(), body)
		key = organization(c) + " " + key // what one has asked, another one cannot ask for
		for {
			k, mine, err := s.answers.begin(key, asked)
			if err != nil {
				return err
			}
			if mine {
				return s.first(c, r, k, body)
			}
			select {
			case <-k.done:
			case <-c.Request().Context().Done():
				return slots.Errorf(slots.KindInterrupted, "request was cancelled")
			}
			if k.final {
				body, err := s.answers.body(k)
				if err != nil {
					return err
				}
				c.Response().Header().Set("Idempotency-Replayed", "true")
				return s.replay(c, k, body)
			}
			// The first came to nothing: it is asked again.
		}
	}
}

// fingerprint stands for all that the request asks for.
func fingerprint(r *http.Request, body []byte) [sha256.Size]byte {
	h := sha256.New()
	for _, part := range []string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery} {
		_, _ = io.WriteString(h, part+"\n") // it never fails
	}
	_, _ = h.Write(body)
	return [sha256.Size]byte(h.Sum(nil))
}

// first carries the request out, also when its client goes away: it asks again
// for the answer.
func (s *Server) first(c echo.Context, r route, k *kept, body []byte) error {
	request, response := c.Request(), c.Response()
	final := false
	k.found = r.about.key == keyLeases
	defer func() {
		c.SetRequest(request)
		c.SetResponse(response)
		s.answers.end(k, final)
	}()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(request.Context()))
	defer cancel(nil)
	defer stopWith(request.Context(), cancel)()
	again := request.WithContext(ctx)
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	c.SetRequest(again)
	c.SetResponse(echo.NewResponse(&k.recording, s.echo))
	if err := r.handle(c); err != nil {
		e := slots.AsError(err)
		s.refuse(c, r.style, err)
		final = !e.Retryable && e.Executed != slots.ExecutedNever
	} else {
		final = true
	}
	c.SetRequest(request)
	c.SetResponse(response)
	return s.replay(c, k, k.body.Bytes())
}

// stopWith cancels when the server stops, which ends the request's context; not
// when its client goes away. The function that it returns ends that.
func stopWith(request context.Context, cancel context.CancelCauseFunc) (end func() bool) {
	return context.AfterFunc(request, func() {
		if cause := context.Cause(request); errors.Is(cause, errStopping) {
			cancel(cause)
		}
	})
}

// replay sends the answer.
func (s *Server) replay(c echo.Context, k *kept, body []byte) error {
	w := c.Response()
	maps.Copy(w.Header(), k.header)
	s.extend(c, len(body))
	w.WriteHeader(k.status)
	_, _ = w.Write(body) // the client is gone; nobody is left to be told
	return nil
}
