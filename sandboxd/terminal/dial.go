package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"berth/sandboxd/api"
	"berth/slots"
)

// Session is a terminal at the client's end. Read is called by one goroutine,
// the others by any.
type Session struct {
	socket *websocket.Conn
	peer   string
	in     io.Reader // of the message that is being read; nil: none

	writing sync.Mutex // guards the socket's writing

	once  sync.Once
	done  chan struct{} // closed after exit and fault are set
	exit  api.TerminalExit
	fault error
}

// Dial asks for a terminal. A server that answers an error gives that answer,
// and no Session and no error; its body is short and need not be closed. peer
// is what errors call the server.
func Dial(ctx context.Context, url string, header http.Header, peer string) (*Session, *http.Response, error) {
	dialer := websocket.Dialer{
		NetDialContext:   (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		HandshakeTimeout: Silence, Subprotocols: []string{api.SubprotocolTerminal},
	}
	socket, answer, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(url, "http"), header)
	if err != nil {
		if answer != nil && errors.Is(err, websocket.ErrBadHandshake) {
			return nil, answer, nil
		}
		return nil, nil, err
	}
	_ = answer.Body.Close() // it has none
	s := &Session{socket: socket, peer: peer, done: make(chan struct{})}
	answerPing := socket.PingHandler()
	socket.SetPingHandler(func(text string) error {
		s.alive()
		return answerPing(text)
	})
	return s, nil, nil
}

// alive expects a sign of the server within Silence.
func (s *Session) alive() {
	_ = s.socket.SetReadDeadline(time.Now().Add(Silence)) // the next read says what is wrong with it
}

// Read reads what is shown. It ends with io.EOF, however the terminal ended.
func (s *Session) Read(p []byte) (int, error) {
	for {
		if s.in != nil {
			n, err := s.in.Read(p)
			if n > 0 {
				return n, nil
			}
			s.in = nil
			if err != nil && !errors.Is(err, io.EOF) {
				s.ended(api.TerminalExit{}, s.lost(err))
				return 0, io.EOF
			}
		}
		s.alive()
		kind, in, err := s.socket.NextReader()
		switch {
		case err != nil:
			s.ended(api.TerminalExit{}, s.lost(err))
			return 0, io.EOF
		case kind == websocket.BinaryMessage:
			s.in = in
		default:
			s.ended(s.last(in))
			s.close(websocket.CloseNormalClosure)
			return 0, io.EOF
		}
	}
}

// last reads the message that says how it ended.
func (s *Session) last(in io.Reader) (api.TerminalExit, error) {
	var end api.TerminalEnd
	err := json.NewDecoder(io.LimitReader(in, maxMessage)).Decode(&end)
	switch {
	case err != nil:
		return api.TerminalExit{}, slots.Errorf(slots.KindInternal, "%s said nothing to be understood of the terminal: %w", s.peer, err)
	case end.Error != nil:
		return api.TerminalExit{}, api.ErrorAnswer{Error: *end.Error}.Err()
	case end.Exit == nil:
		return api.TerminalExit{}, slots.Errorf(slots.KindInternal, "%s did not say how the terminal ended", s.peer)
	}
	return *end.Exit, nil
}

// lost is the error of a connection that has ended before its terminal.
func (s *Session) lost(err error) error {
	if c, ok := errors.AsType[*websocket.CloseError](err); ok && c.Code == websocket.ClosePolicyViolation {
		return slots.Errorf(slots.KindBadRequest, "%s", c.Text)
	}
	return slots.Errorf(slots.KindContainerUnreachable, "connection to %s broke: %w", s.peer, err)
}

func (s *Session) ended(exit api.TerminalExit, fault error) {
	s.once.Do(func() {
		s.exit, s.fault = exit, fault
		close(s.done)
	})
}

// Write types.
func (s *Session) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		piece := p[n:min(n+pieceBytes, len(p))]
		if err := s.send(websocket.BinaryMessage, piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

// Resize tells another size of the window.
func (s *Session) Resize(size api.WindowSize) error {
	text, err := json.Marshal(api.TerminalControl{Resize: &size})
	if err != nil {
		return fmt.Errorf("encode size: %w", err)
	}
	return s.send(websocket.TextMessage, text)
}

func (s *Session) send(kind int, p []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.socket.WriteMessage(kind, p); err != nil {
		return slots.Errorf(slots.KindContainerUnreachable, "connection to %s broke: %w", s.peer, err)
	}
	return nil
}

// Wait waits until Read has met the end, or Close was called.
func (s *Session) Wait() (api.TerminalExit, error) {
	<-s.done
	return s.exit, s.fault
}

// Close ends the terminal, if it has not, and the connection.
func (s *Session) Close() error {
	s.ended(api.TerminalExit{Outcome: slots.OutcomeCancelled, ExitCode: -1}, nil)
	s.close(websocket.CloseGoingAway)
	return s.socket.Close()
}

func (s *Session) close(code int) {
	_ = s.socket.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(controlWait)) // it may be closed
}
