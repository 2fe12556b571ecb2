package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// sharesUser reports whether slots of the mechanism have the agent's user, and
// are kept from its files by their view alone.
func (m mechanism) sharesUser() bool { return !m.ids && (m.namespaces || m.files) }

// resolved is the path without symbolic links; the path itself, when it leads nowhere.
func resolved(path string) string {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		return at
	}
	return filepath.Clean(path)
}

// hides lists what a slot of the mechanism must not see for the sake of a
// secret file. A link is no place for a mask, so paths are without them.
//
// Where slots have the agent's user, a file that takes the place of this one must
// not be seen either: a rename onto a masked file takes the mask away. So it is
// the directories that are hidden, of the name and of the file that it leads to.
func (h *Host) hides(m mechanism, path string) []string {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil // a pipe, which has been read
	}
	file := resolved(path)
	if !m.sharesUser() || fixed(file) {
		return []string{file}
	}
	list := []string{file}
	for _, dir := range []string{resolved(filepath.Dir(path)), filepath.Dir(file)} {
		if !indispensable(dir) {
			list = append(list, dir)
		}
	}
	return list
}

// checkSecrets refuses secret files in a directory that slots cannot do without.
func (h *Host) checkSecrets() error {
	if !h.how.sharesUser() {
		return nil
	}
	for _, path := range h.config.Secrets {
		file := resolved(path)
		for _, dir := range []string{resolved(filepath.Dir(path)), filepath.Dir(file)} {
			if indispensable(dir) && !fixed(file) {
				return fmt.Errorf("hide %s: slots have the agent's user here, and would see a file that takes its place: slots need %s, so move it into a directory of its own", path, dir)
			}
		}
	}
	return nil
}

// indispensable reports whether programs of a slot need the directory, or
// much that does not belong to whoever runs the agent lies there.
func indispensable(dir string) bool {
	return slices.Contains([]string{"/", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/home", "/opt", "/srv", "/var", "/var/lib"}, dir) ||
		below(dir, "/usr")
}

// fixed reports whether the file is a mount of its own, as container engines
// make them: nothing can take its place.
func fixed(file string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, file, 0, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
