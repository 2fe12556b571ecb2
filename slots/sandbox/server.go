package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots/holder"
)

// server is a process that forks a child for each job. On its stream it reads,
// after its source, a byte for each child that it is to fork; the child reads
// the job, with the descriptors of stdout, stderr and the result, and the
// server says how the child ended:
//
//	agent                              server                child
//	  length, source ────────────────────>
//	  one byte ──────────────────────────>  fork
//	  length, job + 3 descriptors ─────────────────────────────>  run
//	  <──────────────────────── report      wait
//
// The byte for the next child follows when everything of the last has ended,
// so that what is killed then is never the next one. The server itself runs
// nothing of a job's. It is not trusted: whatever it says is checked, and all
// that it can spoil is its own slot's results.
type server struct {
	*kept
	control *os.File
	reports chan report // closed when no more will come
	ready   bool        // for another job
}

// report is how a child ended.
type report struct {
	status unix.WaitStatus
	cpu    time.Duration
	maxRSS int64 // bytes
	left   bool  // it has left processes
}

// reportLen is what one takes: status, microseconds, kilobytes, whether
// anything is left.
const reportLen = 4 + 8 + 8 + 1

func readReport(r io.Reader) (report, error) {
	var b [reportLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return report{}, err
	}
	// More than these is nonsense, and must not overflow.
	const mostCPU, mostRSS = 1 << 50, 1 << 50
	return report{
		status: unix.WaitStatus(binary.BigEndian.Uint32(b[:])),
		cpu:    time.Duration(min(binary.BigEndian.Uint64(b[4:]), mostCPU)) * time.Microsecond, //nolint:gosec // bounded
		maxRSS: int64(min(binary.BigEndian.Uint64(b[12:]), mostRSS)) << 10,                     //nolint:gosec // bounded
		left:   b[20] != 0,
	}, nil
}

// startServer starts one, with its first child.
func (i *instance) startServer(ctx context.Context, n Interpreter) (*server, error) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make stream: %w", err)
	}
	defer unix.Close(ends[1])
	k, err := i.keep(holder.Request{Argv: n.Serve, Files: []int{-1, null, null, ends[1]}, Confine: []string{i.apart()}})
	if err != nil {
		unix.Close(ends[0])
		return nil, err
	}
	v := &server{kept: k, control: polled(ends[0], "interpreter"), reports: make(chan report, 1)}
	go v.wait(func() { //nolint:contextcheck // the server outlives who starts it
		v.control.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // its last report may still be there
	})
	go v.listen()
	// A server that does not read has ended, or is about to.
	v.control.SetWriteDeadline(time.Now().Add(killDeadline)) //nolint:errcheck // a socket has deadlines
	if _, err := v.control.Write(append(framed(n.Source), 1)); err != nil {
		v.kill(ctx)
		v.control.Close()
		return nil, fmt.Errorf("tell interpreter its source: %w", err)
	}
	return v, nil
}

// listen ends with the server, or with the first thing that is no report.
func (v *server) listen() {
	defer close(v.reports)
	for {
		r, err := readReport(v.control)
		if err != nil {
			return
		}
		select {
		case v.reports <- r:
		case <-v.ended:
			select {
			case v.reports <- r:
			default: // nobody waits for it
			}
		}
	}
}

// run gives a child the job and waits until it and all that it started have
// ended. Afterwards the server is ready, or of no more use. A job that was not
// taken has not begun.
func (v *server) run(ctx context.Context, j Job) (x holder.Exit, killed int, taken bool, err error) {
	v.ready = false
	began := time.Now()
	result := &counted{to: j.Result}
	s := &streams{pass: make([]int, 0, 3)}
	defer s.end()
	for _, w := range []io.Writer{j.Stdout, j.Stderr, result} {
		read, write, err := v.in.pipe()
		if err != nil {
			return x, 0, false, err
		}
		s.pass = append(s.pass, write)
		s.out = append(s.out, startPump(read, w))
	}
	select {
	case <-v.reports: // the child that was to take the job has been killed
		return x, 0, false, nil
	default:
	}
	err = v.send(ctx, framed(j.Body), s.pass)
	s.passed()
	if err != nil && ctx.Err() == nil {
		return x, 0, false, nil //nolint:nilerr // another process does it
	}
	r, ok, late := v.await(ctx, j.Whole)
	if ok && r.left {
		killed = v.sweepUnder(ctx)
	}
	if !ok {
		if v.hasEnded() { // and the child perhaps goes on
			select {
			case <-s.out[2].done:
			case <-j.Whole:
			case <-ctx.Done():
			}
		}
		// What the server was to collect is not kept any more.
		v.kill(ctx)
		killed = v.in.sweep(ctx)
	}
	s.finish(drain)
	if !result.any.Load() { // the job may still be on its way to a child
		v.kill(ctx)
		v.control.Close()
	}
	taken = s.begun(result)
	x = holder.Exit{Status: r.status, Run: time.Since(began), CPU: r.cpu, MaxRSS: r.maxRSS}
	switch {
	case late && ctx.Err() == nil:
		x.Status = 0
	case !ok:
		x.Status = unix.WaitStatus(unix.SIGKILL)
	}
	if ok && taken {
		// A server that is not what it was may not read.
		v.control.SetWriteDeadline(time.Now().Add(killDeadline)) //nolint:errcheck // a socket has deadlines
		_, err := v.control.Write([]byte{1})
		v.ready = err == nil
	}
	return x, killed, taken, nil
}

// send passes the job with its descriptors.
func (v *server) send(ctx context.Context, text []byte, files []int) error {
	v.control.SetWriteDeadline(time.Time{}) //nolint:errcheck // a socket has deadlines
	stop := context.AfterFunc(ctx, func() {
		v.control.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // as above
	})
	defer stop()
	raw, err := v.control.SyscallConn()
	if err != nil {
		return err
	}
	sent := 0
	rights := unix.UnixRights(files...)
	waited := raw.Write(func(fd uintptr) bool {
		sent, err = unix.SendmsgN(int(fd), text, rights, nil, unix.MSG_NOSIGNAL)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err := errors.Join(waited, err); err != nil {
		return fmt.Errorf("send job: %w", err)
	}
	if sent < len(text) {
		if _, err := v.control.Write(text[sent:]); err != nil {
			return fmt.Errorf("send job: %w", err)
		}
	}
	return nil
}

// await waits for the report of the child. The end of ctx kills the child, and
// so does that of grace after the whole result, which is then late.
func (v *server) await(ctx context.Context, whole <-chan struct{}) (r report, ok, late bool) {
	select {
	case r, ok = <-v.reports:
		return r, ok, false
	case <-ctx.Done():
	case <-whole:
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case r, ok = <-v.reports:
			return r, ok, false
		case <-ctx.Done():
		case <-timer.C:
		}
		late = true
	}
	v.in.holder.Continue() // its own slot may have stopped it
	v.sweepUnder(ctx)
	select {
	case r, ok = <-v.reports:
	case <-time.After(patience):
	}
	return r, ok, late
}

// sweepUnder kills everything below the server.
func (v *server) sweepUnder(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	killed, _, _ := v.process.SweepUnder(ctx) // a holder that has ended took them along
	return killed
}
