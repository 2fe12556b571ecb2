package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/slots/holder"
)

// Where things are in a slot that has its own root.
const (
	viewWorkspace = "/workspace"
	viewRun       = "/run/berth"
	viewAgent     = "/run/berth-agent"
)

// unseen are top-level directories that a slot's root does not take from the
// container's: it has its own, they are the host's, or they are the
// scheduler's and hold secrets.
var unseen = []string{
	"proc", "sys", "dev", "tmp", "run", "workspace", "lost+found", "boot", "mnt", "media",
	"alloc", "local", "secrets", "private",
}

// devices are the nodes of a slot's /dev.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// hidden lists the absolute paths that no slot may see, none below another:
// there is no place for a mask under a mask.
func (h *Host) hidden(m mechanism) []string {
	list := []string{h.config.DataDir}
	for _, p := range h.config.Hide {
		if filepath.IsAbs(p) {
			list = append(list, resolved(p))
		}
	}
	for _, p := range h.config.Secrets {
		list = append(list, h.hides(m, p)...)
	}
	slices.Sort(list)
	var tops []string
	for _, p := range list {
		if !slices.ContainsFunc(tops, func(top string) bool { return below(p, top) }) {
			tops = append(tops, p)
		}
	}
	return tops
}

// view is the root of an instance in a mount namespace of its own. Its files lie
// below place.
func (h *Host) view(m mechanism, place string) (*holder.View, error) {
	v := &holder.View{Proc: m.proc, Pivot: m.pivot}
	entries, err := os.ReadDir("/")
	if err != nil {
		return nil, fmt.Errorf("read root: %w", err)
	}
	at := func(dir string) string { return filepath.Join(place, dir) }
	hidden := h.hidden(m)
	for _, e := range entries {
		path := "/" + e.Name()
		switch {
		case slices.Contains(unseen, e.Name()) || slices.Contains(hidden, path):
		case e.Type()&os.ModeSymlink != 0:
			if to, err := os.Readlink(path); err == nil {
				v.Symlinks = append(v.Symlinks, [2]string{path, to})
			}
		case e.IsDir():
			// A directory that the slot's uid may not enter is no loss to it.
			v.Mounts = append(v.Mounts, holder.Mount{Kind: "bind", Source: path, Target: path, Optional: !slices.Contains(needed, path)})
		}
	}
	for _, p := range hidden {
		v.Mounts = append(v.Mounts, maskOf(v, p)...)
	}
	v.Mounts = append(v.Mounts,
		holder.Mount{Kind: "bind", Source: at("workspace"), Target: viewWorkspace, Writable: true},
		holder.Mount{Kind: "bind", Source: at("tmp"), Target: "/tmp", Writable: true},
		holder.Mount{Kind: "bind", Source: at("vartmp"), Target: "/var/tmp", Writable: true, Optional: true},
		holder.Mount{Kind: "tmpfs", Target: "/run", Options: "mode=755,size=1m,nr_inodes=1024"},
		holder.Mount{Kind: "bind", Source: at("run"), Target: viewRun, Writable: true},
		holder.Mount{Kind: "bind", Source: "view/agent", Target: viewAgent, File: true},
		holder.Mount{Kind: "bind", Source: "view/passwd", Target: "/etc/passwd", File: true, Optional: true},
		holder.Mount{Kind: "bind", Source: "view/group", Target: "/etc/group", File: true, Optional: true},
		holder.Mount{Kind: "tmpfs", Target: "/dev", Options: "mode=755,size=64k,nr_inodes=256"},
	)
	for _, d := range devices {
		v.Mounts = append(v.Mounts, holder.Mount{
			Kind: "bind", Source: "/dev/" + d, Target: "/dev/" + d, File: true, Device: true, Writable: true, Optional: d == "tty",
		})
	}
	v.Mounts = append(v.Mounts,
		holder.Mount{Kind: "tmpfs", Target: "/dev/shm", Options: fmt.Sprintf("mode=1777,size=%d", h.config.Limits.ShmBytes)},
		holder.Mount{Kind: "devpts", Target: "/dev/pts", Optional: true},
		holder.Mount{Kind: "mqueue", Target: "/dev/mqueue", Optional: true},
	)
	v.Symlinks = append(v.Symlinks,
		[2]string{"/dev/fd", "/proc/self/fd"}, [2]string{"/dev/stdin", "/proc/self/fd/0"},
		[2]string{"/dev/stdout", "/proc/self/fd/1"}, [2]string{"/dev/stderr", "/proc/self/fd/2"},
		[2]string{"/dev/ptmx", "pts/ptmx"})
	return v, nil
}

// needed are the directories without which hardly a program runs.
var needed = []string{"/usr", "/bin", "/lib", "/lib64", "/etc"}

// maskOf hides a path that one of the view's binds would show.
func maskOf(v *holder.View, path string) []holder.Mount {
	for _, m := range v.Mounts {
		if m.Kind != "bind" || !below(path, m.Target) {
			continue
		}
		st, err := os.Stat(path)
		if err != nil {
			return nil // not there, so not to be seen
		}
		return []holder.Mount{{Kind: "mask", Target: path, File: !st.IsDir()}}
	}
	return nil
}

// below reports whether path is dir or lies in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// readable lists what stays readable without a mount namespace: the
// container's top-level directories, each split where it leads to something
// hidden.
func (h *Host) readable(m mechanism) (dirs, files []string) {
	hidden := h.hidden(m)
	leads := func(dir string) bool {
		return slices.ContainsFunc(hidden, func(p string) bool { return below(p, dir) })
	}
	var visit func(dir string)
	visit = func(dir string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case dir == "/" && slices.Contains(unseen, e.Name()) && e.Name() != "proc" && e.Name() != "sys":
			case slices.Contains(hidden, path):
			case e.IsDir() && leads(path):
				visit(path)
			case e.IsDir():
				dirs = append(dirs, path)
			case e.Type()&os.ModeSymlink == 0 && dir != "/":
				files = append(files, path)
			}
		}
	}
	visit("/")
	return dirs, files
}
