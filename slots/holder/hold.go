package holder

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// holdRequest asks for files that the agent itself reads or writes.
type holdRequest struct {
	What string `json:"what"` // fifos: two pipes with names, both read ends; file: a new file; drop: remove the pipes
	Name string `json:"name"`
}

// held answers a holdRequest. The frame carries the descriptors.
type held struct {
	Paths []string `json:"paths,omitempty"`
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
	s.conn.send(kindHeld, f.id, encode(answer), files...)
	closeAll(files)
}

func (s *server) open(r holdRequest) (paths []string, files []int, err error) {
	out, errs := filepath.Join(s.plan.Run, r.Name+".out"), filepath.Join(s.plan.Run, r.Name+".err")
	switch r.What {
	case "drop":
		os.Remove(out)
		os.Remove(errs)
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
			if err := unix.Mkfifo(path, 0o600); err != nil {
				closeAll(files)
				return nil, nil, fmt.Errorf("make pipe %s: %w", path, err)
			}
			// Without O_NONBLOCK the open would wait for a writer.
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				closeAll(files)
				return nil, nil, fmt.Errorf("open pipe %s: %w", path, err)
			}
			paths, files = append(paths, path), append(files, fd)
		}
		return paths, files, nil
	}
	return nil, nil, fmt.Errorf("unknown kind %q", r.What)
}
