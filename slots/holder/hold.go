package holder

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// holdRequest asks for files that the agent itself reads or writes.
type holdRequest struct {
	What string `json:"what"` // fifos: two pipes with names, both ends of each; file: a new file; drop: remove the pipes; ptmx: where terminals are made
	Name string `json:"name"`
}

// held answers a holdRequest. The frame carries the descriptors.
type held struct {
	Paths []string `json:"paths,omitempty"`
	Lend  bool     `json:"lend,omitempty"` // the agent is to lend pipes, into which the holder copies
	Error *failure `json:"error,omitempty"`
}

// hold opens files as the slot and passes them to the agent: pipes with names
// for the persistent shell, which cannot be handed a descriptor, and files
// for output that outgrows memory.
func (s *server) hold(f frame) {
	closeAll(f.files)
	request, err := decode[holdRequest](f.body)
	var answer held
	var files []int
	if err == nil {
		answer.Paths, files, err = s.open(request)
	}
	if err != nil {
		e := asFailure(&stageError{"hold", err})
		answer = held{Error: &e}
	}
	err = s.conn.send(kindHeld, f.id, encode(answer), files...)
	switch {
	case !cannotPass(err):
	case request.What == "fifos":
		// They are copied, until they are dropped.
		if s.fifos == nil {
			s.fifos = map[string]fifos{}
		}
		s.fifos[request.Name] = fifos{f.id, []int{files[1], files[3]}}
		s.borrow(f.id, [2]int{files[0], files[2]})
		files, answer.Lend = nil, true
		s.conn.say(kindHeld, f.id, encode(answer))
	default:
		e := asFailure(&stageError{"hold", err})
		s.conn.say(kindHeld, f.id, encode(held{Error: &e}))
	}
	closeAll(files)
}

// fifos are named pipes that are copied.
type fifos struct {
	id      uint64 // of the request for them
	writers []int  // which keep the readers from meeting an early end
}

func (s *server) open(r holdRequest) (paths []string, files []int, err error) {
	out, errs := filepath.Join(s.plan.Run, r.Name+".out"), filepath.Join(s.plan.Run, r.Name+".err")
	switch r.What {
	case "drop":
		_ = os.Remove(out) // the slot may have removed them itself
		_ = os.Remove(errs)
		if f, lent := s.fifos[r.Name]; lent {
			delete(s.fifos, r.Name)
			closeAll(f.writers)
			s.flush(f.id)
		}
		return nil, nil, nil
	case "file":
		if err := os.MkdirAll(s.plan.Output, 0o755); err != nil {
			return nil, nil, err
		}
		path := filepath.Join(s.plan.Output, r.Name)
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return nil, nil, err
		}
		return []string{path}, []int{fd}, nil
	case "fifos":
		if err := os.MkdirAll(s.plan.Run, 0o755); err != nil {
			return nil, nil, err
		}
		for _, path := range []string{out, errs} {
			ends, err := makePipe(path)
			files = append(files, ends...)
			if err != nil {
				closeAll(files)
				return nil, nil, err
			}
			paths = append(paths, path)
		}
		return paths, files, nil
	case "ptmx":
		fd, err := unix.Open(ptmx, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, nil, &os.PathError{Op: "open", Path: ptmx, Err: err}
		}
		return []string{ptmx}, []int{fd}, nil
	}
	return nil, nil, fmt.Errorf("unknown kind %q", r.What)
}

// makePipe makes a pipe with a name and opens both ends: the reader's first,
// without waiting for a writer, and then a writer's, so that the reader does
// not meet an end before the first real writer has come.
func makePipe(path string) (ends []int, err error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make pipe %s: %w", path, err)
	}
	for _, mode := range []int{unix.O_RDONLY, unix.O_WRONLY} {
		fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return ends, fmt.Errorf("open pipe %s: %w", path, err)
		}
		ends = append(ends, fd)
	}
	return ends, nil
}
