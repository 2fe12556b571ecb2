package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"berth/slots/holder"
)

// layer turns the read-only binds of a view into overlays that the instance
// may write to. Their layers lie among the instance's files and go with them.
func (i *instance) layer(v *holder.View) error {
	kept := v.Mounts[:0]
	for _, m := range v.Mounts {
		switch {
		case m.Kind == "bind" && !m.File && !m.Writable:
			layers := filepath.Join(i.place(), "layers", filepath.Base(m.Target))
			if err := i.makeLayers(layers, m.Source); err != nil {
				return err
			}
			if slices.Contains(homes, m.Target) {
				kept = append(kept, holder.Mount{Kind: "bind", Source: layers + "/upper", Target: m.Target, Writable: true})
				continue
			}
			v.Trees = append(v.Trees, m.Source)
			m.Kind, m.Source, m.Tree = "overlay", layers, len(v.Trees)
		case m.Target == "/etc/passwd" || m.Target == "/etc/group":
			continue // root has its line, and useradd must be able to add more
		}
		kept = append(kept, m)
	}
	v.Mounts = kept
	return nil
}

// homes are empty in a slot with a private root: as the root of its own user
// namespace it could read what the container's root keeps there.
var homes = []string{"/root", "/home"}

// makeLayers makes an overlay's upper and work directories. The upper one
// shows its own owner and mode as the directory's: the original's are copied.
func (i *instance) makeLayers(at, original string) error {
	st, err := os.Stat(original)
	if err != nil {
		return fmt.Errorf("make layers of %s: %w", original, err)
	}
	for _, name := range []string{"upper", "work"} {
		dir := i.host.layout.path(at, name)
		err := os.MkdirAll(dir, 0o711)
		if err == nil {
			err = os.Chmod(dir, st.Mode()&(os.ModePerm|os.ModeSticky))
		}
		if err == nil {
			err = os.Chown(dir, i.uid, i.uid)
		}
		if err != nil {
			return fmt.Errorf("make layers of %s: %w", original, err)
		}
	}
	return nil
}
