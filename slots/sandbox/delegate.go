package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/slots/cgroup"
)

// delegateFD is where the delegate finds its socket.
const delegateFD = 3

// delegation is the delegate's one message. It carries the cgroup's directory
// unless there is an error.
type delegation struct {
	Errno int    `json:"errno,omitempty"`
	Text  string `json:"text,omitempty"` // "" when it worked
}

// delegateError is what the machine refused the delegate.
type delegateError struct{ delegation }

func (e *delegateError) Error() string { return e.Text }
func (e *delegateError) Unwrap() error { return syscall.Errno(e.Errno) }

// delegateCgroup has a process in namespaces of its own mount the container's
// cgroup, which the container itself only has read-only, and hand over the
// directory. The process ends at once.
func (h *Host) delegateCgroup(ctx context.Context) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "agent-socket"), os.NewFile(uintptr(pair[1]), "delegate-socket")
	defer ours.Close()
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(ctx, closeDeadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.config.Exe, "cgroup-delegate")
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	cgroup.PlaceDelegate(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start delegate: %w", err)
	}
	theirs.Close()
	f, err := receiveDirectory(ours) // ends with the delegate, which ctx ends
	if ended := cmd.Wait(); ended != nil && err == nil {
		err = errors.Join(fmt.Errorf("end delegate: %w", ended), f.Close())
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

func receiveDirectory(socket *os.File) (*os.File, error) {
	c, err := net.FileConn(socket)
	if err != nil {
		return nil, fmt.Errorf("poll socket: %w", err)
	}
	defer c.Close()
	body, oob := make([]byte, 4<<10), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.(*net.UnixConn).ReadMsgUnix(body, oob)
	if err != nil {
		return nil, fmt.Errorf("hear from delegate: %w", err)
	}
	var answer delegation
	if err := json.Unmarshal(body[:n], &answer); err != nil {
		return nil, fmt.Errorf("hear from delegate: %w", err)
	}
	if answer.Text != "" {
		return nil, &delegateError{answer}
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("hear from delegate: %d attachments: %w", len(messages), err)
	}
	files, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(files) != 1 {
		return nil, fmt.Errorf("hear from delegate: %d files: %w", len(files), err)
	}
	unix.CloseOnExec(files[0])
	return os.NewFile(uintptr(files[0]), "cgroup2"), nil
}

// DelegateMain is the delegate. It returns the exit status.
func DelegateMain() int {
	var answer delegation
	var rights []byte
	dir, err := cgroup.MountDelegated()
	if err != nil {
		answer.Text = err.Error()
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			answer.Errno = int(errno)
		}
	} else {
		defer dir.Close()
		rights = unix.UnixRights(int(dir.Fd()))
	}
	body, err := json.Marshal(answer)
	if err == nil {
		err = unix.Sendmsg(delegateFD, body, rights, nil, 0)
	}
	if err != nil {
		return 1
	}
	return 0
}
