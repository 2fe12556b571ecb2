package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"berth/sandboxd/api"
	"berth/slots"
)

const (
	// Silence is after how long without a sign of it the other end has gone.
	Silence = 60 * time.Second

	controlWait = 5 * time.Second // for a control message to go out
	partingWait = 2 * time.Second // for the client to say that it knows of the end
	pieceBytes  = 32 << 10        // of one message
	maxMessage  = 1 << 20         // bytes of a message from the client

	// What floods its terminal must not keep the server from its other work.
	floodRate  = 16 << 20 // bytes a second
	floodBurst = 1 << 20
)

// TTY is a terminal, wherever it is. Read ends with io.EOF; then Wait says how
// it ended. Close ends it.
type TTY interface {
	io.ReadWriteCloser
	Resize(size api.WindowSize) error
	Wait() (api.TerminalExit, error)
}

// asked reads what a request asks for. One that asks for no WebSocket, or comes
// from a page of another site, is refused.
func asked(r *http.Request) (api.TerminalRequest, error) {
	want := api.TerminalRequest{WindowSize: api.WindowSize{Columns: api.DefaultColumns, Rows: api.DefaultRows}}
	if !websocket.IsWebSocketUpgrade(r) || r.Method != http.MethodGet {
		return want, slots.Errorf(slots.KindBadRequest, "a terminal is a WebSocket: ask for an upgrade")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		// Browsers let any page try.
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return want, slots.Errorf(slots.KindDenied, "a page of another site may not have a terminal")
		}
	}
	err := fromQuery(r.URL.Query(), &want)
	return want, err
}

// Group is the terminals of one server, whose connections are not the HTTP
// server's any more: it waits for them by Await. The zero value is ready.
type Group struct{ open sync.WaitGroup }

// Serve starts what the request asks for, upgrades the request, and carries the
// terminal until it ends, or its client or ctx does. An error, of start or of
// the upgrade, is still to be answered; nil means that all is said.
func (g *Group) Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, start func(api.TerminalRequest) (TTY, error)) error {
	want, err := asked(r)
	if err != nil {
		return err
	}
	g.open.Add(1)
	defer g.open.Done()
	tty, err := start(want)
	if err != nil {
		return err
	}
	return serve(ctx, w, r, tty, Silence)
}

func serve(ctx context.Context, w http.ResponseWriter, r *http.Request, tty TTY, silence time.Duration) error {
	defer func() { _ = tty.Close() }() // Wait says how it ended
	var refused error
	upgrader := websocket.Upgrader{
		Subprotocols: []string{api.SubprotocolTerminal},
		CheckOrigin:  func(*http.Request) bool { return true }, // see asked
		Error: func(_ http.ResponseWriter, _ *http.Request, _ int, err error) {
			refused = slots.Errorf(slots.KindBadRequest, "%w", err)
		},
	}
	socket, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		if refused != nil {
			return refused
		}
		return slots.Errorf(slots.KindInternal, "upgrade connection: %w", err)
	}
	defer func() { _ = socket.Close() }() // its client hears of it either way
	boundSilence(socket.NetConn(), silence)
	s := &served{socket: socket, tty: tty, silence: silence, typed: newTypeahead(tty)}
	s.run(ctx)
	return nil
}

// served is a terminal at the server's end.
type served struct {
	socket  *websocket.Conn
	tty     TTY
	silence time.Duration
	typed   *typeahead

	writing sync.Mutex // held while a message, or a ping, is written
}

func (s *served) run(ctx context.Context) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	stop := context.AfterFunc(ctx, func() { s.tty.Close() }) //nolint:errcheck // Wait says how it ended
	defer stop()
	var beside sync.WaitGroup
	defer beside.Wait()
	defer func() { _ = s.tty.Close() }() // as above
	over, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	beside.Go(s.typed.feed)
	defer s.typed.close()
	beside.Go(func() { s.ping(over, leave) })
	heard := make(chan struct{})
	beside.Go(func() {
		defer close(heard)
		leave(s.listen())
	})
	if err := s.show(ctx); err != nil {
		leave(err)
		_ = s.socket.Close() // its listener ends too
		return
	}
	exit, err := s.tty.Wait()
	if cause, ok := errors.AsType[*slots.Error](context.Cause(ctx)); ok && (err != nil || exit.Outcome == slots.OutcomeCancelled) {
		err = cause
	}
	s.part(exit, err)
	// To close a connection that holds unread input would take the last message
	// back.
	select {
	case <-heard:
	case <-time.After(partingWait):
	}
	_ = s.socket.Close() // all is said
}

// errLeft is a client that has gone.
var errLeft = errors.New("client has left")

// ping asks whether the client is there, until ctx ends.
func (s *served) ping(ctx context.Context, leave context.CancelCauseFunc) {
	tick := time.NewTicker(s.silence / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// A message that is on its way to a slow client goes first: it has its own
		// deadline. Behind it a ping has its turn, or a client that reads all the
		// time, and types nothing, would be taken for gone.
		s.writing.Lock()
		err := s.socket.WriteControl(websocket.PingMessage, nil, time.Now().Add(s.silence))
		s.writing.Unlock()
		if err != nil {
			leave(errLeft)
			return
		}
	}
}

// write sends a message.
func (s *served) write(kind int, p []byte, within time.Duration) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = s.socket.SetWriteDeadline(time.Now().Add(within)) // WriteMessage says what is wrong with it
	return s.socket.WriteMessage(kind, p)
}

// listen takes what the client says, until it says no more.
func (s *served) listen() error {
	s.socket.SetReadLimit(maxMessage)
	s.socket.SetPongHandler(func(string) error { return s.heard() })
	buf := make([]byte, pieceBytes)
	for {
		if s.heard() != nil {
			return errLeft
		}
		kind, in, err := s.socket.NextReader()
		switch {
		case err != nil:
			return errLeft
		case kind == websocket.BinaryMessage:
			_, err = io.CopyBuffer(s.typed, message{s, in}, buf)
		default:
			err = s.control(in)
		}
		if e, ok := errors.AsType[*slots.Error](err); ok {
			s.refuse(e)
			return e
		}
		if err != nil {
			return errLeft
		}
	}
}

// heard expects the client's next sign within its silence.
func (s *served) heard() error { return s.socket.SetReadDeadline(time.Now().Add(s.silence)) }

// message is one from the client. The time that the terminal took to take its
// last piece is not the client's.
type message struct {
	s  *served
	in io.Reader
}

func (m message) Read(p []byte) (int, error) {
	_ = m.s.heard() // Read says what is wrong with it
	return m.in.Read(p)
}

// control does what a TerminalControl says.
func (s *served) control(in io.Reader) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return errLeft
	}
	var said api.TerminalControl
	if err := api.DecodeStrict(text, &said); err != nil {
		return err
	}
	if said.Resize == nil {
		return nil
	}
	if err := said.Resize.Check(); err != nil {
		return err
	}
	_ = s.tty.Resize(*said.Resize) // a terminal that takes none has ended, and its end is on its way
	return nil
}

// refuse tells a client that it broke the protocol.
func (s *served) refuse(err *slots.Error) {
	text := websocket.FormatCloseMessage(websocket.ClosePolicyViolation, err.Message[:min(len(err.Message), 100)])
	_ = s.socket.WriteControl(websocket.CloseMessage, text, time.Now().Add(controlWait)) // it may have gone
}

// show passes on what is shown, to the end.
func (s *served) show(ctx context.Context) error {
	buf := make([]byte, pieceBytes)
	room, last := float64(floodBurst), time.Now()
	for {
		n, err := s.tty.Read(buf)
		if n > 0 && s.write(websocket.BinaryMessage, buf[:n], s.silence) != nil {
			return errLeft
		}
		if err != nil {
			return nil //nolint:nilerr // Wait says how it ended
		}
		now := time.Now()
		room = min(floodBurst, room+now.Sub(last).Seconds()*floodRate) - float64(n)
		last = now
		if room >= 0 {
			continue
		}
		select {
		case <-time.After(time.Duration(-room / floodRate * float64(time.Second))):
		case <-ctx.Done():
		}
	}
}

// part says how it ended.
func (s *served) part(exit api.TerminalExit, err error) {
	end := api.TerminalEnd{Exit: &exit}
	if err != nil {
		fault := api.NewErrorAnswer(err).Error
		end = api.TerminalEnd{Error: &fault}
	}
	text, err := json.Marshal(end)
	if err != nil {
		return // of strings and numbers
	}
	_ = s.write(websocket.TextMessage, text, controlWait) // the client may have gone
	bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = s.socket.WriteControl(websocket.CloseMessage, bye, time.Now().Add(controlWait)) // as above
}

// Await waits for the terminals of a server that has stopped to tell their
// clients, but not for ever. The context of each has ended by then.
func (g *Group) Await() {
	told := make(chan struct{})
	go func() { // ends with the last of them, or with the program
		defer close(told)
		g.open.Wait()
	}()
	select {
	case <-told:
	case <-time.After(partingWait):
	}
}
