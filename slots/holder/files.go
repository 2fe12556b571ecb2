package holder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// OpenFile makes a new file in the slot's output directory, as the slot, for
// the agent to write. path is the slot's name of it.
func (h *Holder) OpenFile(ctx context.Context, name string) (file *os.File, path string, err error) {
	fds, paths, err := h.open(ctx, holdRequest{What: "file", Name: name}, unix.S_IFREG, 1, 1)
	if err != nil {
		return nil, "", err
	}
	return os.NewFile(uintptr(fds[0]), paths[0]), paths[0], nil
}

// NamedPipe is a pipe that a process of the slot opens by its path.
type NamedPipe struct {
	Path  string
	Read  int // descriptor, does not block
	Write int // descriptor, keeps the reader from meeting an early end; -1: DropPipes does what closing it would

	// Copied is whether the holder copies from the pipe to Read. What was written
	// before DropPipes is there after it.
	Copied bool
}

// OpenPipes makes two pipes with names in the slot. DropPipes removes the
// names; the descriptors are the caller's.
func (h *Holder) OpenPipes(ctx context.Context, name string) (pipes [2]NamedPipe, err error) {
	fds, paths, err := h.open(ctx, holdRequest{What: "fifos", Name: name}, unix.S_IFIFO, 2, 4)
	if err != nil {
		return pipes, err
	}
	if len(fds) == len(pipes) {
		for i, fd := range fds {
			pipes[i] = NamedPipe{Path: paths[i], Read: fd, Write: -1, Copied: true}
		}
		return pipes, nil
	}
	for i := range pipes {
		if fds[2*i], err = ownReader(fds[2*i]); err != nil {
			closeAll(slices.DeleteFunc(fds, func(fd int) bool { return fd < 0 }))
			return pipes, fmt.Errorf("open fifos: %w", err)
		}
		pipes[i] = NamedPipe{Path: paths[i], Read: fds[2*i], Write: fds[2*i+1]}
	}
	return pipes, nil
}

// DropPipes removes the names that OpenPipes made.
func (h *Holder) DropPipes(ctx context.Context, name string) error {
	f, err := h.call(ctx, kindHold, encode(holdRequest{What: "drop", Name: name}))
	closeAll(f.files)
	return err
}

func (h *Holder) open(ctx context.Context, r holdRequest, wantType uint32, paths, files int) ([]int, []string, error) {
	f, err := h.call(ctx, kindHold, encode(r))
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", r.What, err)
	}
	answer, err := decode[held](f.body)
	if err == nil && answer.Error != nil {
		err = &StageError{Stage: answer.Error.Stage, Errno: answer.Error.Errno, Text: answer.Error.Text}
	}
	if err == nil && answer.Lend && r.What == "fifos" && len(f.files) == 0 {
		if f.files, err = h.lend(f.id, true, true); err == nil {
			files = len(f.files)
		}
	}
	if err == nil && (len(f.files) != files || len(answer.Paths) != paths) {
		err = fmt.Errorf("%w: %d files", errFrame, len(f.files))
	}
	for _, fd := range f.files {
		if err == nil {
			err = expectType(fd, wantType)
		}
	}
	if err != nil {
		closeAll(f.files)
		return nil, nil, fmt.Errorf("open %s: %w", r.What, err)
	}
	return f.files, answer.Paths, nil
}

// lend answers a holder that may pass no descriptors: it is given the ends to
// write to of a new pipe for each that is wanted. The others are returned, and
// do not block.
func (h *Holder) lend(id uint64, wanted ...bool) (read []int, err error) {
	var write []int
	for _, want := range wanted {
		if !want || err != nil {
			continue
		}
		var ends [2]int
		if err = unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			err = fmt.Errorf("make pipe: %w", err)
			continue
		}
		read, write = append(read, ends[0]), append(write, ends[1])
		err = unix.SetNonblock(ends[0], true)
	}
	if err == nil && len(write) > 0 {
		err = h.send(kindLend, id, nil, write...)
	}
	closeAll(write)
	if err != nil {
		closeAll(read)
		return nil, err
	}
	return read, nil
}

// expectType refuses a descriptor that is not what was asked for: the agent
// must not block in, or write to, whatever a hostile holder hands it.
func expectType(fd int, want uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat passed file: %w", err)
	}
	if st.Mode&unix.S_IFMT != want {
		return fmt.Errorf("%w: passed file has mode %#o", errFrame, st.Mode)
	}
	return nil
}

// shortInput is the most that travels inside a request.
const shortInput = 32 << 10

// Do runs a file operation as the slot: args and reply are JSON values, in
// and out the operation's data, each of which may be nil. The context's end
// cancels it. Errors of the operation come back typed as it made them.
func (h *Holder) Do(ctx context.Context, name string, args, reply any, in io.Reader, out io.Writer) error { //nolint:revive // the arguments of Sandbox.Do
	request := opRequest{Name: name}
	var err error
	if request.Args, err = json.Marshal(args); err != nil {
		return fmt.Errorf("encode arguments of %s: %w", name, err)
	}
	pipe, err := request.attach(in)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var files []int
	if pipe != nil {
		files = []int{int(pipe.read.Fd())}
	}
	id := h.newID()
	answer := h.register(id, 2) // a stream and a reply
	defer h.forget(id)
	err = h.send(kindOp, id, encode(request), files...)
	pipe.begin(in, func(whole bool) { h.tell(kindInput, id, encode(inputEnd{whole})) })
	defer pipe.end()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	stop := context.AfterFunc(ctx, func() { h.tell(kindCancel, id, nil) })
	defer stop()
	return h.finish(ctx, name, answer, reply, out)
}

func (h *Holder) finish(ctx context.Context, name string, answer chan frame, reply any, out io.Writer) error {
	f, err := h.await(ctx, answer)
	if err == nil && f.kind == kindStream {
		if len(f.files) == 0 {
			f.files, err = h.lend(f.id, true)
		}
		if err == nil {
			err = copyStream(ctx, f.files, out)
		}
		if err == nil {
			f, err = h.await(ctx, answer)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	closeAll(f.files)
	answered, err := decode[opReply](f.body)
	if err != nil || f.kind != kindReply {
		return fmt.Errorf("%s: %w: kind %d: %w", name, errFrame, f.kind, err)
	}
	if answered.Error != nil {
		return answered.Error.Typed()
	}
	if out != nil && len(answered.Output) > 0 {
		if _, err := out.Write(answered.Output); err != nil {
			return fmt.Errorf("%s: write output: %w", name, err)
		}
	}
	if reply == nil {
		return nil
	}
	if err := json.Unmarshal(answered.Reply, reply); err != nil {
		return fmt.Errorf("%s: %w: %w", name, errFrame, err)
	}
	return nil
}

// copyStream reads a passed pipe to its end, or to the context's.
func copyStream(ctx context.Context, files []int, out io.Writer) error {
	if len(files) != 1 {
		closeAll(files)
		return fmt.Errorf("%w: stream of %d files", errFrame, len(files))
	}
	if err := expectType(files[0], unix.S_IFIFO); err != nil {
		closeAll(files)
		return err
	}
	fd, err := ownReader(files[0])
	if err != nil {
		return err
	}
	stream := os.NewFile(uintptr(fd), "op-output")
	defer stream.Close() // early, it ends the operation's next write
	// The operation hears of the context's end by itself; a holder that does
	// not care must not hold the caller.
	stop := context.AfterFunc(ctx, func() {
		stream.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // a pipe of ours has deadlines, until it is closed
	})
	defer stop()
	if out == nil {
		out = io.Discard
	}
	if _, err := io.Copy(out, stream); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("copy output: %w", err)
	}
	return nil
}

// ownReader exchanges a passed pipe for an opening of our own. Whether reads
// block belongs to the opening, which we would share with the holder: it
// could have a thread of ours wait for ever.
func ownReader(fd int) (int, error) {
	own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
		return fd, unix.SetNonblock(fd, true) // no /proc here, or the slot's uid is not ours to override
	}
	unix.Close(fd)
	if err != nil {
		return -1, fmt.Errorf("open passed pipe: %w", err)
	}
	return own, nil
}

// inputPipe feeds an operation that takes more than fits in its request.
type inputPipe struct {
	read, write *os.File
	done        chan struct{}
}

// attach reads the beginning of in into the request, and makes a pipe when
// there is more.
func (r *opRequest) attach(in io.Reader) (*inputPipe, error) {
	if in == nil {
		return nil, nil
	}
	// Not io.ReadFull: its own error for a short input is the one by which an
	// HTTP body says that it was cut off.
	head, err := io.ReadAll(io.LimitReader(in, shortInput+1))
	if err != nil {
		return nil, fmt.Errorf("read input: %w", err)
	}
	if len(head) <= shortInput {
		r.Inline = head
		return nil, nil
	}
	r.Inline, r.Piped = head, true
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make input pipe: %w", err)
	}
	return &inputPipe{read: read, write: write, done: make(chan struct{})}, nil
}

// begin copies in to the pipe beside the operation. ended is told, before the
// pipe ends, whether all of in was read: an input that was cut off must not
// look like a short one.
func (p *inputPipe) begin(in io.Reader, ended func(whole bool)) {
	if p == nil {
		return
	}
	p.read.Close()
	go func() {
		defer close(p.done)
		defer p.write.Close()
		_, err := io.Copy(p.write, in)
		ended(err == nil)
	}()
}

// end stops the copying and waits for it.
func (p *inputPipe) end() {
	if p == nil {
		return
	}
	p.write.Close()
	<-p.done
}
