package holder

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// idmappedTrees makes detached copies of directory trees in which the
// container's ids appear as those of a process' user namespace: what belongs
// to the container's root belongs to the slot's, and only in the copy.
// It needs CAP_SYS_ADMIN over the file systems, which a slot never has.
func idmappedTrees(pid int, dirs []string) (fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
		}
	}()
	userns, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	defer unix.Close(userns)
	for _, dir := range dirs {
		tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fds, fmt.Errorf("copy tree %s: %w", dir, err)
		}
		fds = append(fds, tree)
		attr := unix.MountAttr{
			Attr_set:  unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
			Userns_fd: uint64(userns),
		}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return fds, fmt.Errorf("map ids of %s: %w", dir, err)
		}
	}
	return fds, nil
}

// attachTree mounts one of the plan's trees.
func attachTree(m Mount, target string, trees []int) error {
	if m.Tree < 1 || m.Tree > len(trees) {
		return fmt.Errorf("%w: tree %d of %d", errFrame, m.Tree, len(trees))
	}
	if err := unix.MoveMount(trees[m.Tree-1], "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach tree: %w", err)
	}
	return nil
}

// mountOverlay puts a writable layer over one of the plan's trees. The tree is
// attached only for as long as the overlay needs to take hold of it.
func mountOverlay(m Mount, target string, trees []int) error {
	lower := filepath.Join(rootDir, ".lower")
	if err := makeTarget(lower, Mount{}); err != nil {
		return err
	}
	if err := attachTree(m, lower, trees); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", lower, m.Source+"/upper", m.Source+"/work")
	err := unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options)
	if err != nil {
		err = fmt.Errorf("mount overlay: %w", err)
	}
	if e := unix.Unmount(lower, unix.MNT_DETACH); e != nil && err == nil {
		err = fmt.Errorf("detach tree: %w", e)
	}
	if e := os.Remove(lower); e != nil && err == nil {
		err = fmt.Errorf("remove mount point: %w", e)
	}
	return err
}
