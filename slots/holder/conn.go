package holder

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// conn sends and receives frames over one end of a SOCK_SEQPACKET pair.
// Sends may come from many goroutines, receives from one.
type conn interface {
	send(k kind, id uint64, body []byte, files ...int) error
	receive() (frame, error)
	Close() error
}

// socketpair makes a connected pair: the agent's end as a conn in the
// runtime's poller, the other end as a file to pass on.
func socketpair() (*polledConn, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "holder-socket")
	ours := os.NewFile(uintptr(pair[0]), "agent-socket")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("poll socket: %w", err)
	}
	return &polledConn{unix: c.(*net.UnixConn), buf: make([]byte, headerSize+maxInline+1), oob: make([]byte, unix.CmsgSpace(4*maxFiles))}, theirs, nil
}

// polledConn waits in the runtime's poller: the agent's side, with many.
type polledConn struct {
	unix     *net.UnixConn
	buf, oob []byte
	begun    frame // the pieces so far of a body that comes in several
}

// sendDeadline bounds how long a full socket is waited for.
const sendDeadline = 5 * time.Second

var framePool = sync.Pool{New: func() any { return new([]byte) }}

func (c *polledConn) send(k kind, id uint64, body []byte, files ...int) error {
	return withPacket(k, id, body, files, func(packet, oob []byte) error {
		// The other side may be stopped, or hostile, and never read.
		if err := c.unix.SetWriteDeadline(time.Now().Add(sendDeadline)); err != nil {
			return err
		}
		_, _, err := c.unix.WriteMsgUnix(packet, oob, nil)
		return err
	})
}

func (c *polledConn) receive() (frame, error) {
	for {
		n, oobn, flags, _, err := c.unix.ReadMsgUnix(c.buf, c.oob)
		if err != nil {
			return frame{}, err
		}
		f, err := unpack(c.buf[:n], c.oob[:oobn], flags)
		if err != nil {
			return frame{}, err
		}
		if whole, err := c.assemble(&f); whole || err != nil {
			return f, err
		}
	}
}

// assemble puts the pieces of a body together. Other frames come in between,
// but no pieces of another.
func (c *polledConn) assemble(f *frame) (whole bool, err error) {
	begun := &c.begun
	goesOn := begun.more && f.kind == begun.kind && f.id == begun.id
	switch {
	case !goesOn && !f.more:
		return true, nil
	case goesOn != begun.more || len(f.files) > 0 || len(begun.body)+len(f.body) > maxBody:
		closeAll(f.files)
		*f = frame{}
		return false, fmt.Errorf("%w: pieces of kind %d", errFrame, begun.kind)
	}
	f.body = append(begun.body, f.body...)
	if *begun = (frame{}); f.more {
		*begun = *f
	}
	return !f.more, nil
}

// Close ends the connection. The other side reads the end of it.
func (c *polledConn) Close() error { return c.unix.Close() }

// blockingConn blocks a thread in recvmsg: the side with nothing else to do.
// It keeps the poller, its thread and its memory out of the holder.
type blockingConn struct {
	fd       int
	buf, oob []byte
	pieces   sync.Mutex // held by who sends a body in several
}

func newBlockingConn(fd int) *blockingConn {
	return &blockingConn{fd: fd, buf: make([]byte, headerSize+maxInline+1), oob: make([]byte, unix.CmsgSpace(4*maxFiles))}
}

func (c *blockingConn) send(k kind, id uint64, body []byte, files ...int) error {
	err := withPacket(k, id, body, files, c.sendPacket)
	if cannotPass(err) && len(files) == 0 {
		return c.sendPieces(k, id, body)
	}
	return err
}

func (c *blockingConn) sendPacket(packet, oob []byte) error {
	return retryInterrupted(func() error { return unix.Sendmsg(c.fd, packet, oob, nil, unix.MSG_NOSIGNAL) })
}

// sendPieces sends a body that cannot be attached.
func (c *blockingConn) sendPieces(k kind, id uint64, body []byte) error {
	c.pieces.Lock()
	defer c.pieces.Unlock()
	var packet []byte
	for more := true; more; {
		piece := body[:min(len(body), maxInline)]
		body = body[len(piece):]
		var flags byte
		if more = len(body) > 0; more {
			flags = flagMore
		}
		packet = appendFrame(packet[:0], k, flags, id, piece)
		if err := c.sendPacket(packet, nil); err != nil {
			return err
		}
	}
	return nil
}

// say sends what nobody can be told about when it does not arrive: without
// descriptors, a failed send means that the agent is gone, and the next receive
// ends the process.
func (c *blockingConn) say(k kind, id uint64, body []byte) { _ = c.send(k, id, body) }

func (c *blockingConn) receive() (frame, error) {
	var n, oobn, flags int
	err := retryInterrupted(func() (err error) {
		n, oobn, flags, _, err = unix.Recvmsg(c.fd, c.buf, c.oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return frame{}, err
	}
	f, err := unpack(c.buf[:n], c.oob[:oobn], flags)
	if err == nil && f.more {
		closeAll(f.files)
		return frame{}, fmt.Errorf("%w: a piece", errFrame)
	}
	return f, err
}

// Close closes the descriptor.
func (c *blockingConn) Close() error { return unix.Close(c.fd) }

func retryInterrupted(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// withPacket encodes a frame, attaching a body that is too large for a packet.
func withPacket(k kind, id uint64, body []byte, files []int, send func(packet, oob []byte) error) error {
	var flags byte
	if len(body) > maxInline {
		fd, err := attach(body)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		files = append(slices.Clone(files), fd)
		body, flags = nil, flagAttached
	}
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	p := framePool.Get().(*[]byte)
	defer framePool.Put(p)
	*p = appendFrame((*p)[:0], k, flags, id, body)
	return send(*p, oob)
}

// attach puts the body in a sealed memory file, rewound.
func attach(body []byte) (int, error) {
	fd, err := unix.MemfdCreate("frame", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "frame")
	defer f.Close()
	if _, err := f.Write(body); err != nil {
		return -1, fmt.Errorf("write memory file: %w", err)
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// unpack copies a packet into a frame with its descriptors, and closes all of
// them when the packet is malformed.
func unpack(packet, oob []byte, flags int) (_ frame, err error) {
	var files []int
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	if len(oob) > 0 {
		if files, err = parseRights(oob); err != nil {
			return frame{}, err
		}
	}
	if len(packet) == 0 && len(files) == 0 {
		return frame{}, io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return frame{}, fmt.Errorf("%w: truncated", errFrame)
	}
	f, attached, err := parseFrame(packet)
	if err != nil {
		return frame{}, err
	}
	f.body = slices.Clone(f.body)
	if attached {
		if len(files) == 0 {
			return frame{}, fmt.Errorf("%w: attached body is missing", errFrame)
		}
		last := files[len(files)-1]
		if f.body, err = detach(last); err != nil {
			return frame{}, err
		}
		unix.Close(last)
		files = files[:len(files)-1]
	}
	f.files = files
	return f, nil
}

// parseRights keeps what it has read when a later message is malformed, so
// that the caller can close it.
func parseRights(oob []byte) (files []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, fmt.Errorf("%w: %w", errFrame, err)
		}
		files = append(files, fds...)
	}
	return files, nil
}

// detach reads an attached body. It trusts neither the file's kind nor its
// size: only a memory file of bounded size is read, so nothing can block.
func detach(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxBody {
		return nil, fmt.Errorf("%w: attached body of mode %#o, %d bytes, seals %#x", errFrame, st.Mode, st.Size, seals)
	}
	body := make([]byte, st.Size)
	for read := 0; read < len(body); {
		n, err := unix.Pread(fd, body[read:], int64(read))
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%w: read attached body: %w", errFrame, err)
		}
		read += n
	}
	return body, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
