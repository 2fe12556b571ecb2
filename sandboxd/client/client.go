package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

const (
	maxAnswer = 512 << 20 // bytes of a JSON answer
	maxDrain  = 256 << 10 // bytes read of an unwanted rest, so that its connection can be used again
)

// Config says which container a Client is for.
type Config struct {
	URL        string        // like http://10.0.0.7:8080; required
	Token      string        // bearer token; "" sends none
	HTTPClient *http.Client  // nil: one of its own, whose connections Close closes
	Retries    int           // how often a request that may be is sent again; default 2, -1: never
	Backoff    time.Duration // before the first such retry, doubled for each; default 50 ms
	Peer       string        // what errors call the server; default "container"

	// PassOn says that the results of Execute and BatchStream are only passed
	// on: they are read by api.PeekResult.
	PassOn bool
}

// Client calls one container. All methods may be called at once.
type Client struct {
	origin  *url.URL
	token   string
	http    *http.Client
	own     bool
	retries int
	backoff time.Duration
	peer    string
	result  func(text []byte) (api.Result, error) // reads one of Execute or BatchStream
	heard   atomic.Int64                          // when something came last, in nanoseconds since 1970; 0: never
}

// New makes a Client. It does not connect.
func New(config Config) (*Client, error) {
	peer := cmp.Or(config.Peer, "container")
	origin, err := url.Parse(config.URL)
	if err != nil {
		return nil, fmt.Errorf("parse address of %s: %w", peer, err)
	}
	if origin.Scheme != "http" && origin.Scheme != "https" || origin.Host == "" {
		return nil, fmt.Errorf("parse address of %s: %q is no http URL", peer, config.URL)
	}
	origin.Path = strings.TrimSuffix(origin.Path, "/")
	c := &Client{
		origin: origin, token: config.Token, http: config.HTTPClient, retries: config.Retries, backoff: config.Backoff, peer: peer,
		result: api.DecodeResult,
	}
	if config.PassOn {
		c.result = api.PeekResult
	}
	if c.retries == 0 {
		c.retries = 2
	}
	if c.backoff <= 0 {
		c.backoff = 50 * time.Millisecond
	}
	if c.http == nil {
		c.http, c.own = &http.Client{Transport: transport(origin)}, true
	}
	return c, nil
}

// Close closes the idle connections of a Client that made its own.
func (c *Client) Close() {
	if c.own {
		c.http.CloseIdleConnections()
	}
}

// Heard is when something came from the container last: the beginning of an
// answer, or a line of one that is streamed. The zero time: nothing has yet.
func (c *Client) Heard() time.Time {
	if at := c.heard.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

func (c *Client) hears() { c.heard.Store(time.Now().UnixNano()) }

// Request is one request before it is sent.
type Request struct {
	Method string
	Path   string // escaped, from the root of Config.URL
	Query  url.Values
	Header http.Header
	Body   any       // sent as JSON; nil: none
	Stream io.Reader // sent as it is, instead of Body
	Length int64     // of Stream, in bytes; -1: not known
	Again  bool      // may be sent again

	sent  bool // what it asks for may have reached the container before
	begun bool // it follows what an earlier request of the same call has begun
}

// send sends r and returns the answer, whose body the caller has to finish.
// An answer above 399 comes back as its error.
func (c *Client) send(ctx context.Context, r Request) (*http.Response, error) {
	var text []byte
	if r.Body != nil {
		var err error
		if text, err = encodeBody(r.Body); err != nil {
			return nil, slots.Errorf(slots.KindBadRequest, "encode request: %w", err)
		}
	}
	for tried := 0; ; tried++ {
		answer, err := c.try(ctx, r, text)
		if err == nil {
			c.hears()
			return answer, c.checked(answer)
		}
		r.sent = r.sent || !dialled(err)
		if !r.Again || !c.pause(ctx, tried) {
			return nil, c.unreachable(ctx, r, err)
		}
	}
}

// encodeBody makes the JSON of a body. A Call makes its own, because most requests
// are one.
func encodeBody(body any) ([]byte, error) {
	if call, ok := body.(api.Call); ok {
		return call.AppendJSON(make([]byte, 0, len(call.Args)+roomForCall))
	}
	return json.Marshal(body)
}

// roomForCall is what a Call's JSON takes beside its Args as a rule, in bytes.
const roomForCall = 256

// pause waits before the next try; false when there is to be none.
func (c *Client) pause(ctx context.Context, tried int) bool {
	if tried >= c.retries {
		return false
	}
	timer := time.NewTimer(c.backoff << tried)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Client) try(ctx context.Context, r Request, text []byte) (*http.Response, error) {
	target := c.origin.Scheme + "://" + c.origin.Host + c.origin.EscapedPath() + r.Path
	if len(r.Query) > 0 {
		target += "?" + r.Query.Encode()
	}
	body := r.Stream
	if text != nil {
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, target, body)
	if err != nil {
		return nil, err
	}
	if r.Stream != nil {
		req.ContentLength = r.Length
		// The container can refuse before anything was sent.
		req.Header.Set("Expect", "100-continue")
	}
	if text != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	maps.Copy(req.Header, r.Header)
	if r.Again && req.Header[keyRepeatable] == nil {
		// A kept connection that turns out to be closed is not worth a try.
		req.Header[keyRepeatable] = nil
	}
	return c.http.Do(req)
}

// dialled reports whether the error is that of a connection that was never
// made.
func dialled(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// unreachable is the error of a request that got no answer. What was sent once
// may have had its effect, whatever became of later tries.
func (c *Client) unreachable(ctx context.Context, r Request, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("call %s: %w", c.peer, context.Cause(ctx))
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // the rest only repeats the address
	}
	e := slots.Errorf(slots.KindContainerUnreachable, "call %s: %w", c.peer, err)
	if r.Again || dialled(err) {
		return e.WithExecuted(r.executed())
	}
	e.Retryable = false // it may have had its effect, and nothing would tell
	return e
}

// executed is whether what got no answer has had an effect. Asking has none,
// unless it goes on asking for what was begun.
func (r Request) executed() slots.Executed {
	if !r.sent || r.Method == http.MethodGet && !r.begun {
		return slots.ExecutedNever
	}
	return slots.ExecutedMaybe
}

// Call sends r and decodes the JSON of its answer into v, which may be nil. It
// is for routes that have no method of their own, also of other servers that
// answer with the errors of package api.
func (c *Client) Call(ctx context.Context, r Request, v any) error { return c.call(ctx, r, v) }

// call sends r and decodes the answer into v, which may be nil.
func (c *Client) call(ctx context.Context, r Request, v any) error {
	answer, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer func() {
		drain(answer.Body)
		_ = answer.Body.Close() // all that was wanted of it is read
	}()
	if v == nil {
		return nil
	}
	text, err := readAnswer(answer)
	if err != nil {
		return broken(ctx, err)
	}
	if result, ok := v.(*api.Result); ok {
		*result, err = c.result(text)
	} else {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return slots.Errorf(slots.KindInternal, "decode answer: %w", err)
	}
	return nil
}

// readAnswer reads a whole answer.
func readAnswer(answer *http.Response) ([]byte, error) {
	var text bytes.Buffer
	// What it says of its length is believed as far as it costs little.
	text.Grow(int(min(max(answer.ContentLength, 0), 1<<20)) + bytes.MinRead)
	if _, err := text.ReadFrom(io.LimitReader(answer.Body, maxAnswer+1)); err != nil {
		return nil, err
	}
	if text.Len() > maxAnswer {
		return nil, fmt.Errorf("answer is larger than %d bytes", maxAnswer)
	}
	return text.Bytes(), nil
}

// broken is the error of an answer that ended too early.
func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("read answer: %w", context.Cause(ctx))
	}
	return slots.Errorf(slots.KindContainerUnreachable, "read answer: %w", err)
}

// drain reads what is left of a body, if that is little, so that its
// connection serves the next request.
func drain(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, maxDrain) // an error ends the connection, which is all it can do
}

// checked turns an answer above 399 into its error and closes it.
func (c *Client) checked(answer *http.Response) error {
	if answer.StatusCode < 400 {
		return nil
	}
	defer func() {
		drain(answer.Body)
		_ = answer.Body.Close() // all that was wanted of it is read
	}()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		text = nil // the status says enough
	}
	return c.refusal(answer.StatusCode, text)
}

// kinds is the table of slots.Kind backwards, for answers that name none.
var kinds = map[int]slots.Kind{
	http.StatusBadRequest: slots.KindBadRequest, http.StatusUnauthorized: slots.KindUnauthorized,
	http.StatusForbidden: slots.KindDenied, http.StatusNotFound: slots.KindNotFound,
	http.StatusConflict: slots.KindConflict, http.StatusPreconditionFailed: slots.KindConflict,
	http.StatusRequestEntityTooLarge: slots.KindTooLarge, http.StatusTooManyRequests: slots.KindPoolExhausted,
	http.StatusBadGateway: slots.KindContainerUnreachable, http.StatusServiceUnavailable: slots.KindContainerUnreachable,
	http.StatusGatewayTimeout: slots.KindContainerUnreachable, http.StatusInternalServerError: slots.KindInternal,
}

// refusal is the error that an answer carries in any of its forms.
func (c *Client) refusal(status int, text []byte) error {
	var ours api.ErrorAnswer
	if json.Unmarshal(text, &ours) == nil && ours.Error.Kind != "" {
		return ours.Err()
	}
	var artifact api.ArtifactFailure
	if json.Unmarshal(text, &artifact) == nil && artifact.ErrorKind != "" {
		return artifact.Err()
	}
	var result api.Result
	if json.Unmarshal(text, &result) == nil && result.Err() != nil {
		return result.Err()
	}
	kind, known := kinds[status]
	switch {
	case known:
	case status >= 500:
		kind = slots.KindInternal
	default:
		kind = slots.KindBadRequest
	}
	return slots.Errorf(kind, "%s answered %d %s", c.peer, status, http.StatusText(status))
}
