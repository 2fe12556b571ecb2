package holder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// errCutOff is the end of an input that was not all that was to come.
var errCutOff = errors.New("input was cut off")

// opInput is a piped input. Its end is believed only when the agent has said
// that it is the true one.
type opInput struct {
	ctx   context.Context //nolint:containedctx // an io.Reader has no other way to hear of a cancel
	from  io.Reader
	whole <-chan bool
	ended bool
}

// Read reads on, and at the end waits for the agent's word.
func (i *opInput) Read(p []byte) (int, error) {
	n, err := i.from.Read(p)
	if err != io.EOF || i.ended {
		return n, err
	}
	select {
	case whole := <-i.whole:
		i.ended = true
		if !whole {
			return n, errCutOff
		}
		return n, io.EOF
	case <-i.ctx.Done():
		return n, context.Cause(i.ctx)
	}
}

// shortOutput is the most that an operation returns inside its reply.
const shortOutput = 32 << 10

// opOutput collects an operation's output while it is short, and turns into a
// pipe to the agent once it is not.
type opOutput struct {
	ctx    context.Context //nolint:containedctx // as above
	server *server         // nil: no pipe can be made, a long output is an error
	id     uint64
	short  []byte
	pipe   *os.File

	tooLong bool // what could not be written for want of a pipe
}

var errTooLong = errors.New("output is too long to be had at once")

// Write keeps p or sends it on. The agent closing the pipe is an error, which
// ends the operation.
func (o *opOutput) Write(p []byte) (int, error) {
	if o.pipe != nil {
		return o.pipe.Write(p)
	}
	if len(o.short)+len(p) <= shortOutput {
		o.short = append(o.short, p...)
		return len(p), nil
	}
	if o.server == nil {
		o.tooLong = true
		return 0, errTooLong
	}
	if err := o.open(); err != nil {
		return 0, err
	}
	if _, err := o.pipe.Write(o.short); err != nil {
		return 0, err
	}
	o.short = nil
	return o.pipe.Write(p)
}

func (o *opOutput) open() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make output pipe: %w", err)
	}
	err := o.server.conn.send(kindStream, o.id, nil, ends[0])
	unix.Close(ends[0])
	if cannotPass(err) {
		unix.Close(ends[1])
		ends[1], err = o.borrow()
	}
	if err != nil {
		unix.Close(ends[1])
		return fmt.Errorf("pass output pipe: %w", err)
	}
	o.pipe = os.NewFile(uintptr(ends[1]), "op-output")
	return nil
}

// borrow asks the agent for a pipe to write to, see loan.
func (o *opOutput) borrow() (int, error) {
	s, lent := o.server, make(chan int, 1)
	s.mu.Lock()
	s.lends[o.id] = lent
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.lends, o.id)
		s.mu.Unlock()
	}()
	if err := s.conn.send(kindStream, o.id, nil); err != nil {
		return -1, err
	}
	select {
	case fd := <-lent:
		return fd, nil
	case <-o.ctx.Done():
		return -1, context.Cause(o.ctx)
	}
}

// Close ends the pipe, if there is one, before the reply is sent.
func (o *opOutput) Close() error {
	if o.pipe == nil {
		return nil
	}
	return o.pipe.Close()
}
