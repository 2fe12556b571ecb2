package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/slots/workspace"
)

// shared are the directories of a container where anybody may leave files.
// Only slots without a mount namespace can reach them.
var shared = []string{"/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock", "/var/lock"}

// removeIPC takes away what a uid left outside its own directories: files in
// shared places and System V IPC objects.
func removeIPC(ctx context.Context, uid int) error {
	var errs []error
	for _, dir := range shared {
		errs = append(errs, removeOwned(ctx, dir, uid))
	}
	for _, kind := range []struct {
		file   string
		remove func(id int) error
	}{
		{"shm", func(id int) error { _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); return err }},
		{"sem", func(id int) error { return ipcRemove(unix.SYS_SEMCTL, id) }},
		{"msg", func(id int) error { return ipcRemove(unix.SYS_MSGCTL, id) }},
	} {
		ids, err := ipcOwned("/proc/sysvipc/"+kind.file, uid)
		errs = append(errs, err)
		for _, id := range ids {
			if err := kind.remove(id); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("remove %s %d: %w", kind.file, id, err))
			}
		}
	}
	return errors.Join(errs...)
}

func removeOwned(ctx context.Context, dir string, uid int) error {
	open, err := os.Open(dir)
	if err != nil {
		return nil // not there, or not open to slots either
	}
	defer open.Close()
	entries, err := open.ReadDir(-1)
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	var errs []error
	for _, e := range entries {
		st, err := os.Lstat(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // gone meanwhile
		}
		if owner, ok := st.Sys().(*syscall.Stat_t); ok && int(owner.Uid) == uid {
			errs = append(errs, workspace.RemoveAll(ctx, open, e.Name()))
		}
	}
	return errors.Join(errs...)
}

func ipcRemove(call uintptr, id int) error {
	// msgctl(id, IPC_RMID, nil); semctl(id, 0, IPC_RMID).
	var errno unix.Errno
	if call == unix.SYS_SEMCTL {
		_, _, errno = unix.Syscall(call, uintptr(id), 0, unix.IPC_RMID)
	} else {
		_, _, errno = unix.Syscall(call, uintptr(id), unix.IPC_RMID, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// ipcOwned reads the ids of a uid's objects from a table whose first line
// names the columns.
func ipcOwned(table string, uid int) ([]int, error) {
	text, err := os.ReadFile(table)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // a kernel without System V IPC
	}
	if err != nil {
		return nil, fmt.Errorf("read IPC objects: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	id, owner := -1, -1
	for i, column := range strings.Fields(lines[0]) {
		switch column {
		case "shmid", "semid", "msqid":
			id = i
		case "uid":
			owner = i
		}
	}
	if id < 0 || owner < 0 {
		return nil, fmt.Errorf("read IPC objects: %s has columns %q", table, lines[0])
	}
	var ids []int
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		if len(fields) > max(id, owner) && fields[owner] == strconv.Itoa(uid) {
			if n, err := strconv.Atoi(fields[id]); err == nil {
				ids = append(ids, n)
			}
		}
	}
	return ids, nil
}
