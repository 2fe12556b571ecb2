package holder

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Output of a process is collected in the holder, and travels with the report
// of its end: most is short, and a pipe to the agent costs both sides more than
// all the rest of a short command. What is long, or comes from a process that
// goes on, is passed: the agent then reads the pipes itself. The pipes are the
// slot's own either way, so that its processes can open /dev/stdout.

// passAfter is how long output may wait in the holder for more of it, or for
// the process's end.
const passAfter = 2 * time.Millisecond

// output is what is collected of one process.
type output struct {
	fds  [2]int // read ends, which do not block; -1: at its end, passed, or none
	text [2][]byte
	came time.Time // when the first of it came; zero: none has
}

func noOutput() output { return output{fds: [2]int{-1, -1}} }

// newOutput makes the pipes. theirs are the ends of the process.
func newOutput() (o output, theirs [2]int, err error) {
	o = noOutput()
	for n := range o.fds {
		var ends [2]int
		if err = unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			break
		}
		o.fds[n], theirs[n] = ends[0], ends[1]
		if _, err = unix.FcntlInt(uintptr(ends[0]), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
			break
		}
	}
	if err != nil {
		o.close()
		for _, fd := range theirs {
			if fd > 0 {
				unix.Close(fd)
			}
		}
		return noOutput(), theirs, fmt.Errorf("make pipe: %w", err)
	}
	return o, theirs, nil
}

func (o *output) close() {
	for n, fd := range o.fds {
		if fd >= 0 {
			unix.Close(fd)
			o.fds[n] = -1
		}
	}
}

func (o *output) open() bool { return o.fds[0] >= 0 || o.fds[1] >= 0 }

func (o *output) length() int { return len(o.text[0]) + len(o.text[1]) }

// due is when what came has waited long enough; false when nothing waits.
func (o *output) due() (time.Duration, bool) {
	if o.came.IsZero() || !o.open() {
		return 0, false
	}
	return max(0, passAfter-time.Since(o.came)), true
}

// read takes what is there of one stream, as long as there is room for it.
func (o *output) read(n int, buf []byte) {
	for o.fds[n] >= 0 && o.length() < shortOutput {
		got, err := unix.Read(o.fds[n], buf[:min(len(buf), shortOutput-o.length())])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil || got == 0:
			unix.Close(o.fds[n])
			o.fds[n] = -1
		default:
			if o.came.IsZero() {
				o.came = time.Now()
			}
			o.text[n] = append(o.text[n], buf[:got]...)
		}
	}
}

// collect takes what the last wait has found, and passes what has become long
// or has waited.
func (s *server) collect() {
	for _, p := range s.procs {
		if !p.output.open() {
			continue
		}
		for n := range p.output.fds {
			if s.events[p.event+1+n].Revents != 0 {
				p.output.read(n, s.buf[:])
			}
		}
		if due, ok := p.output.due(); ok && due == 0 || p.output.length() >= shortOutput {
			s.pass(p)
		}
	}
}

// collectLast takes the rest of a process that has ended. Pipes that others
// hold open are passed: whether more comes is for the agent to wait for.
func (s *server) collectLast(p *process) {
	for n := range p.output.fds {
		p.output.read(n, s.buf[:])
	}
	if p.output.open() {
		s.pass(p)
	}
}

func (s *server) pass(p *process) {
	passed := outputPassed{Early: p.output.text}
	var files []int
	for n, fd := range p.output.fds {
		if passed.Open[n] = fd >= 0; passed.Open[n] {
			files = append(files, fd)
		}
	}
	body := encode(passed)
	if cannotPass(s.conn.send(kindOutput, p.id, body, files...)) { // any other failure is the agent's end
		s.conn.say(kindOutput, p.id, body)
		s.borrow(p.id, p.output.fds)
		p.output.fds = noOutput().fds
	}
	p.output.close()
	p.output.text = [2][]byte{}
}
