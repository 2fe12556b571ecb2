package holder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/slots/seccomp"
)

// The words of the confine trampoline: what it adds to a process before, or
// instead of, becoming it.
const (
	// ConfineSubreaper makes the process collect what its descendants leave.
	ConfineSubreaper = "subreaper"
	// ConfineNoNetwork denies the process every socket but AF_UNIX.
	ConfineNoNetwork = "no-network"
	// ConfineApart keeps the process, and what descends from it, from tracing
	// others of the slot and from reading and writing their memory, where the
	// kernel has Landlock's scopes (6.12). ConfineApartFiles is the same in a slot
	// whose Plan has Landlock.Files.
	ConfineApart      = "apart"
	ConfineApartFiles = "apart-files"
	// ConfineStay runs the process as a child, writes its wait status as four
	// little-endian bytes to descriptor 3, and stays until everything that
	// descends from it has ended.
	ConfineStay = "stay"
	// ConfineTerminal is ConfineStay for a child that leads a session of its
	// own, whose terminal is descriptor 0. Four little-endian bytes on descriptor
	// 3 say, before the status, that the child runs: the session's number.
	ConfineTerminal = "terminal"
)

// ConfineMain is the trampoline: `confine WORD... -- PATH ARGV...`. It runs
// inside a slot, for the few processes that need something that the holder
// does not give to all. It returns only on failure, or with ConfineStay.
func ConfineMain(args []string, stderr io.Writer) int {
	cut := slices.Index(args, "--")
	if cut < 0 || len(args) < cut+3 {
		fmt.Fprintln(stderr, "confine: want WORD... -- PATH ARGV...")
		return 64
	}
	words, path, argv := args[:cut], args[cut+1], args[cut+2:]
	runtime.LockOSThread()
	err := confine(words)
	if onTerminal := slices.Contains(words, ConfineTerminal); err == nil && (onTerminal || slices.Contains(words, ConfineStay)) {
		err = stay(path, argv, onTerminal)
		if err == nil {
			return 0
		}
	} else if err == nil {
		err = syscall.Exec(path, argv, os.Environ())
	}
	fmt.Fprintf(stderr, "%s: %v\n", argv[0], err)
	if errors.Is(err, os.ErrNotExist) {
		return 127 // as a shell answers
	}
	return 126
}

func confine(words []string) error {
	if slices.ContainsFunc(words, func(w string) bool { return w == ConfineSubreaper || w == ConfineStay || w == ConfineTerminal }) {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become subreaper: %w", err)
		}
	}
	files := slices.Contains(words, ConfineApartFiles)
	if files || slices.Contains(words, ConfineApart) {
		if err := setApart(files); err != nil {
			return fmt.Errorf("set apart: %w", err)
		}
	}
	if !slices.Contains(words, ConfineNoNetwork) {
		return nil
	}
	// A second filter on top of the slot's: the stricter answer wins.
	arch, err := seccomp.HostArch()
	if err != nil {
		return err
	}
	program, err := seccomp.Compile(seccomp.ForSlot(seccomp.Options{NoNetwork: true}), arch)
	if err != nil {
		return fmt.Errorf("compile filter: %w", err)
	}
	return seccomp.Install(program)
}

func stay(path string, argv []string, onTerminal bool) error {
	debug.SetGCPercent(25)
	const statusFD = 3
	unix.CloseOnExec(statusFD)
	attr := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}}
	if onTerminal {
		// Not this process: what is typed to interrupt the child would end it.
		attr.Sys = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return err
	}
	if onTerminal {
		_, _ = unix.Write(statusFD, binary.LittleEndian.AppendUint32(nil, uint32(pid))) // who asked may be gone
	}
	// Whoever reads the output must see it end when the command's own
	// processes have ended, not when this one has.
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return err
		}
	}
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil // no child is left
		case ended == pid:
			_, _ = unix.Write(statusFD, binary.LittleEndian.AppendUint32(nil, uint32(status))) // who asked may be gone
			unix.Close(statusFD)
		}
	}
}
