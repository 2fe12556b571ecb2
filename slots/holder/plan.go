package holder

import "berth/slots/seccomp"

// Plan is everything that a holder needs to confine itself: a plain value,
// decided by the agent from what the probe found. It is sent to the holder
// as its first message.
type Plan struct {
	Slot       string     `json:"slot"` // also the host name, where UTS is own
	Dir        string     `json:"dir"`  // the data directory; the spawner stands in it when it clones
	Namespaces Namespaces `json:"namespaces"`
	IDs        IDs        `json:"ids"`
	View       *View      `json:"view,omitempty"` // nil: the container's own root

	Workspace string   `json:"workspace"` // as processes of the slot see it; where commands start
	Output    string   `json:"output"`    // where spilled output goes, as the slot sees it
	Run       string   `json:"run"`       // for the shell's pipes and for scripts, as the slot sees it
	Env       []string `json:"env"`
	Confine   string   `json:"confine"` // the agent's binary, as the slot sees it; "" when it cannot

	Rlimits     []Rlimit         `json:"rlimits"`
	OOMScoreAdj int              `json:"oom_score_adj"` // of what it starts; its own is holderOOMMargin below
	MemoryBytes int64            `json:"memory_bytes"`  // what the slot may use; 0: no limit of its own
	Landlock    *Landlock        `json:"landlock,omitempty"`
	NoNewPrivs  bool             `json:"no_new_privs"`
	Seccomp     *seccomp.Options `json:"seccomp,omitempty"`
	trees       []int            // View.Trees, in the holder
	ScoreFile   int              `json:"score_file,omitempty"` // set by the holder: descriptor of its own OOM score; 0: none
	Began       int64            `json:"began,omitempty"`      // set by the holder, Unix nanoseconds
	Threads     int              `json:"threads"`              // made ahead, so that a full pids limit cannot end the holder
}

// forServing drops what has been done.
func (p *Plan) forServing() {
	p.Rlimits, p.Landlock, p.Seccomp = nil, nil, nil
	if p.View != nil {
		p.View = &View{Proc: p.View.Proc}
	}
}

// Namespaces says which namespaces a holder gets of its own.
type Namespaces struct {
	User   bool `json:"user"`
	PID    bool `json:"pid"`
	Mount  bool `json:"mount"`
	IPC    bool `json:"ipc"`
	UTS    bool `json:"uts"`
	Cgroup bool `json:"cgroup"`
	Net    bool `json:"net"`
}

// IDs says as whom a holder runs.
type IDs struct {
	// Switch is whether the holder takes UID and GID, drops all groups and
	// empties its capability sets.
	Switch bool `json:"switch"`
	UID    int  `json:"uid"` // as seen inside
	GID    int  `json:"gid"`
	// Bare empties the capability sets of a holder that keeps its ids.
	Bare bool `json:"bare,omitempty"`
	// Map lists the ids of an own user namespace.
	Map []IDMap `json:"map,omitempty"`
	// Caps are kept, by number, in the holder and all below it. They mean
	// something only inside its own user namespace.
	Caps []int `json:"caps,omitempty"`
}

// IDMap is one line of a uid_map; gids are mapped alike.
type IDMap struct {
	Inside     int `json:"inside"`
	OutsideUID int `json:"outside_uid"`
	OutsideGID int `json:"outside_gid"`
	Size       int `json:"size"`
}

// View is the slot's own root. Sources are absolute paths of the container,
// or relative to Plan.Dir; targets are absolute paths inside.
type View struct {
	Trees    []string    `json:"trees,omitempty"` // directories of which copies, with ids mapped, are mounted
	Mounts   []Mount     `json:"mounts"`          // in order
	Symlinks [][2]string `json:"symlinks"`        // path, target
	Proc     string      `json:"proc"`            // fresh, rbind, none
	Pivot    bool        `json:"pivot"`           // pivot_root; else MS_MOVE and chroot
}

// Mount is one mount of a view.
type Mount struct {
	Kind     string `json:"kind"` // bind, tree, overlay, tmpfs, devpts, mqueue, mask
	Source   string `json:"source,omitempty"`
	Target   string `json:"target"`
	Writable bool   `json:"writable,omitempty"`
	Device   bool   `json:"device,omitempty"`   // a device node: keep it usable
	File     bool   `json:"file,omitempty"`     // the source is no directory
	Tree     int    `json:"tree,omitempty"`     // which of View.Trees, from 1: a tree is that, writable; an overlay lies on it, and Source holds its layers
	Optional bool   `json:"optional,omitempty"` // its failure is no failure
	Options  string `json:"options,omitempty"`  // for tmpfs
}

// Rlimit is one limit, for both soft and hard. It is never raised above what
// the holder finds.
type Rlimit struct {
	Resource int    `json:"resource"`
	Value    uint64 `json:"value"`
}

// Landlock says what of Landlock a holder puts on itself.
type Landlock struct {
	ABI      int  `json:"abi"`
	Files    bool `json:"files"`     // only the paths below stay reachable
	Scope    bool `json:"scope"`     // no abstract socket of, no signal to, anybody outside; ABI 6
	HidePort bool `json:"hide_port"` // no TCP connection to the spawner's HidePort, no server on it; ABI 4

	Read      []string `json:"read,omitempty"`       // directories: read and execute
	ReadFiles []string `json:"read_files,omitempty"` // files: read and execute
	Write     []string `json:"write,omitempty"`      // directories: everything
	Device    []string `json:"device,omitempty"`     // files: read, write, ioctl
}

// Facts is what a ready holder reports of itself. It is informative: nothing
// is decided by it.
type Facts struct {
	SetupNS int64 `json:"setup_ns"`
	Threads int   `json:"threads"`
}
