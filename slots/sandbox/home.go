package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/slots/holder"
)

// viewHome is where slots with a root of their own see the home.
const viewHome = "/run/home"

// Home is the directory that the slots of the host share and that outlives
// them, as they see it; "": there is none. Slots that have uids of their own
// can share one only where ids can be mapped: on disk all of it belongs to
// insideID then, and to nobody's uid in particular.
func (h *Host) Home() string { return h.homeOf(h.how) }

func (h *Host) homeOf(m mechanism) string {
	switch {
	case h.config.Home == "" || m.ids && !m.userns:
		return ""
	case m.namespaces:
		return viewHome
	default:
		return h.config.Home
	}
}

// makeHome makes the directory, which only the agent and the slots can enter.
func (h *Host) makeHome() error {
	if h.config.Home == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(h.config.Home), 0o711); err != nil { //nolint:gosec // others may pass through
		return fmt.Errorf("make home: %w", err)
	}
	if err := os.Mkdir(h.config.Home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make home: %w", err)
	}
	return nil
}

// giveHome gives the directory to whom the slots are on disk, once it is known
// how they are held apart.
func (h *Host) giveHome() error {
	if h.Home() == "" || h.facts.UID != 0 {
		return nil
	}
	id := 0
	if h.how.ids {
		id = insideID
	}
	if err := os.Chown(h.config.Home, id, id); err != nil {
		return fmt.Errorf("give home to the slots: %w", err)
	}
	return nil
}

// showHome adds the home to the view of an instance. A build does not see it:
// what it runs is nobody's in particular.
func (i *instance) showHome(v *holder.View) {
	if i.work != nil || i.host.homeOf(i.how) == "" {
		return
	}
	m := holder.Mount{Kind: "bind", Source: i.host.config.Home, Target: viewHome, Writable: true}
	if i.how.ids {
		v.Trees = append(v.Trees, m.Source)
		m = holder.Mount{Kind: "tree", Target: viewHome, Tree: len(v.Trees)}
	}
	v.Mounts = append(v.Mounts, m)
}
