package holder

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spawn starts one process and registers it. It runs on the one goroutine
// that reads requests, so starts keep the order of requests.
func (s *server) spawn(f frame) {
	began := time.Now()
	defer func() { closeAll(f.files) }() // the script's is taken out of them
	request, err := decode[spawnRequest](f.body)
	if err != nil {
		s.refuse(f.id, &stageError{"request", err})
		return
	}
	if request.Script {
		if f.files, err = s.keepScript(f, &request); err != nil {
			s.refuse(f.id, &stageError{"script", err})
			return
		}
	}
	path, attr, err := s.prepare(&request, f.files)
	if err != nil {
		s.refuse(f.id, err)
		return
	}

	collected := noOutput()
	if request.Collect {
		var theirs [2]int
		if collected, theirs, err = newOutput(); err != nil {
			s.refuse(f.id, &stageError{"output", err})
			return
		}
		defer closeAll(theirs[:])
		attr.Files[1], attr.Files[2] = uintptr(theirs[0]), uintptr(theirs[1])
	}
	pidfd := -1
	attr.Sys.PidFD = &pidfd
	s.childless = false
	s.score.lend(request.Keep)
	// Before it is made: this thread may have to wait long for its turn once the
	// process runs, and no time of the process's may go uncounted.
	started := time.Now()
	pid, err := syscall.ForkExec(path, request.Argv, attr)
	if errors.Is(err, unix.EACCES) && s.reopenWorkspace() {
		pid, err = syscall.ForkExec(path, request.Argv, attr)
	}
	s.score.back()
	if err != nil {
		collected.close()
		s.refuse(f.id, notStarted(path, attr.Dir, err))
		return
	}
	p := &process{id: f.id, pid: pid, pidfd: pidfd, started: started, spawn: time.Since(began), output: collected}
	s.procs[pid] = p
	if request.Keep {
		s.kept[p.id] = p
	}
}

// reopenWorkspace gives the owner back what a command has taken from the
// workspace: where every command begins, none could undo it. It reports whether
// there was anything.
func (s *server) reopenWorkspace() bool {
	var st unix.Stat_t
	if err := unix.Stat(s.plan.Workspace, &st); err != nil || st.Mode&unix.S_IRWXU == unix.S_IRWXU {
		return false
	}
	return unix.Chmod(s.plan.Workspace, st.Mode&0o7777|unix.S_IRWXU) == nil
}

// notStarted tells a directory that cannot be entered from a program that cannot
// be run: exec reports both by the same error numbers.
func notStarted(path, dir string, err error) error {
	if errors.Is(err, unix.EACCES) && unix.Access(dir, unix.X_OK) != nil {
		return &stageError{"cwd", &os.PathError{Op: "chdir", Path: dir, Err: err}}
	}
	return &stageError{"exec", fmt.Errorf("%s: %w", path, err)}
}

func (s *server) refuse(id uint64, err error) {
	s.conn.say(kindRefused, id, encode(asFailure(err)))
}

// prepare turns a request into the arguments of fork and exec.
func (s *server) prepare(request *spawnRequest, files []int) (path string, attr *syscall.ProcAttr, err error) {
	if len(request.Argv) == 0 {
		return "", nil, &stageError{"request", fmt.Errorf("%w: no argv", errFrame)}
	}
	env := s.env
	if len(request.Env) > 0 {
		env = mergeEnv(s.env, request.Env)
	}
	if path, err = s.path.lookup(request.Argv[0], s.env); err != nil {
		return "", nil, &stageError{"lookup", err}
	}
	if len(request.Confine) > 0 {
		words := append([]string{s.plan.Confine, "confine"}, request.Confine...)
		request.Argv = append(append(words, "--", path), request.Argv...)
		path = s.plan.Confine
	}
	// A group of its own, but the holder's session: that has no terminal, and a
	// new session would cost a scheduling group.
	attr = &syscall.ProcAttr{Env: env, Sys: &syscall.SysProcAttr{Setpgid: true}}
	if request.NoStdin {
		attr.Files = append(attr.Files, uintptr(s.null))
	}
	for _, fd := range files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	for len(attr.Files) < 3 {
		attr.Files = append(attr.Files, uintptr(s.null))
	}
	attr.Dir = s.plan.Workspace
	if request.Cwd != "" {
		attr.Dir = s.inView(request.Cwd)
		// Asked ahead, because exec reports a bad directory and a bad program
		// by the same error numbers.
		st, err := os.Stat(attr.Dir)
		if errors.Is(err, unix.EACCES) && s.reopenWorkspace() {
			st, err = os.Stat(attr.Dir)
		}
		if err != nil {
			return "", nil, &stageError{"cwd", err}
		} else if !st.IsDir() {
			return "", nil, &stageError{"cwd", &os.PathError{Op: "chdir", Path: attr.Dir, Err: syscall.ENOTDIR}}
		}
	}
	return path, attr, nil
}

// inView is where a path of the caller's lies: below /workspace, or relative
// to it, means the workspace, also where the slot sees that elsewhere.
func (s *server) inView(path string) string {
	if path == workspaceAlias {
		return s.plan.Workspace
	}
	if rest, ok := strings.CutPrefix(path, workspaceAlias+"/"); ok {
		return filepath.Join(s.plan.Workspace, rest)
	}
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(s.plan.Workspace, path)
}

// keepScript copies the last descriptor's text to a file that the process can
// read and appends its path to argv. It returns the other descriptors.
func (s *server) keepScript(f frame, request *spawnRequest) ([]int, error) {
	last := len(f.files) - 1
	if last < 0 {
		return f.files, fmt.Errorf("%w: no script", errFrame)
	}
	text := os.NewFile(uintptr(f.files[last]), "script")
	defer text.Close()
	path := filepath.Join(s.plan.Run, fmt.Sprintf("script-%d", f.id))
	_ = os.Remove(path) // of an earlier holder on the same files
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return f.files[:last], err
	}
	defer out.Close()
	if _, err := io.Copy(out, io.NewSectionReader(text, 0, maxBody)); err != nil {
		return f.files[:last], err
	}
	request.Argv = append(request.Argv, path)
	return f.files[:last], nil
}

// mergeEnv puts extra over env; the last of a name wins.
func mergeEnv(env, extra []string) []string {
	out := make([]string, 0, len(env)+len(extra))
	at := make(map[string]int, len(env)+len(extra))
	for _, list := range [][]string{env, extra} {
		for _, kv := range list {
			name, _, _ := strings.Cut(kv, "=")
			if i, dup := at[name]; dup {
				out[i] = kv
				continue
			}
			at[name] = len(out)
			out = append(out, kv)
		}
	}
	return out
}

// pathCache remembers where programs are by the slot's PATH. A command that
// brings a PATH of its own means it for what the command starts: the shell that
// runs it is there all the same.
type pathCache map[string]string

func (c *pathCache) lookup(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	if path, ok := (*c)[name]; ok {
		return path, nil
	}
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(list, ":") {
			path := filepath.Join("/", dir, name)
			if unix.Access(path, unix.X_OK) != nil {
				continue
			}
			if st, err := os.Stat(path); err != nil || st.IsDir() {
				continue
			}
			if *c == nil {
				*c = pathCache{}
			}
			(*c)[name] = path
			return path, nil
		}
	}
	return "", &os.PathError{Op: "find", Path: name, Err: syscall.ENOENT}
}
