package holder

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots/timerslack"
)

// order asks the spawner for one holder. The frame carries its socket.
type order struct {
	Dir        string     `json:"dir"`
	Namespaces Namespaces `json:"namespaces"`
	IDs        IDs        `json:"ids"`
	Files      bool       `json:"files"` // the plan's Landlock.Files
}

// spawnerSetup is the first message to a spawner.
type spawnerSetup struct {
	HidePort int `json:"hide_port"` // 0: none
}

// SpawnerMain is the spawner: it clones holders on request, passes on how
// they ended, and kills what they leave behind. It returns the exit status.
func SpawnerMain() int {
	// Holders are cloned from this thread, which must outlive them.
	runtime.LockOSThread()
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	SealDescriptors()
	surviveSignals() // it ends with its connection, when the agent has drained
	s := &spawnerServer{conn: newBlockingConn(socketFD), holders: map[int]uint64{}, made: make(chan struct{}, 1)}
	if err := s.setUp(); err != nil {
		s.conn.say(kindFailed, 0, encode(asFailure(err)))
		return 1
	}
	go s.reap()
	for {
		f, err := s.conn.receive()
		if errors.Is(err, errFrame) {
			continue
		}
		if err != nil {
			break
		}
		if f.kind == kindSweep {
			go s.answerSweep(f) // waits for processes to end; holders go on being made
			continue
		}
		s.make(f)
	}
	// The agent is gone. Holders see their own connections end too, but a
	// holder that does not answer must not outlive it either.
	s.killAll()
	deadline := time.Now().Add(sweepDeadline)
	for hasChildren() && time.Now().Before(deadline) {
		s.killOrphans()
		<-time.After(sweepPause)
	}
	return 0
}

type spawnerServer struct {
	conn     *blockingConn
	made     chan struct{}
	hidePort int // 0: none
	// rules are the port rulesets, which holders find at rulesFD, by whether
	// they have a layer about files too.
	rules map[bool]uintptr

	mu      sync.Mutex     // guards holders; held across the clone, so that no end is missed
	holders map[int]uint64 // order ids by pid
}

func (s *spawnerServer) setUp() error {
	f, err := s.conn.receive()
	if err != nil {
		return &stageError{"setup", err}
	}
	setup, err := decode[spawnerSetup](f.body)
	if err != nil {
		return &stageError{"setup", err}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return &stageError{"subreaper", err}
	}
	s.hidePort, s.rules = setup.HidePort, map[bool]uintptr{}
	return s.conn.send(kindReady, 0, nil)
}

// portRules are the descriptors of the ruleset for a holder, with a layer about
// files or without: one, or none when no port is hidden.
func (s *spawnerServer) portRules(files bool) ([]uintptr, error) {
	if s.hidePort == 0 {
		return nil, nil
	}
	rules, made := s.rules[files]
	if !made {
		fd, err := portRules(s.hidePort, files)
		if err != nil {
			return nil, &stageError{"hide port", err}
		}
		rules = uintptr(fd)
		s.rules[files] = rules
	}
	return []uintptr{rules}, nil
}

func (s *spawnerServer) make(f frame) {
	defer closeAll(f.files)
	pid, pidfd, err := s.clone(f)
	if err != nil {
		s.conn.say(kindRefused, f.id, encode(asFailure(err)))
		return
	}
	err = s.conn.send(kindReady, f.id, []byte(strconv.Itoa(pid)), pidfd)
	if cannotPass(err) {
		// The agent hears of no holder, and lets go of this one's connection.
		s.conn.say(kindRefused, f.id, encode(asFailure(&stageError{"pass", err})))
	}
	unix.Close(pidfd)
	select {
	case s.made <- struct{}{}:
	default:
	}
}

func (s *spawnerServer) clone(f frame) (pid, pidfd int, err error) {
	o, err := decode[order](f.body)
	if err != nil || len(f.files) != 1 {
		return 0, 0, &stageError{"order", fmt.Errorf("%w: %d files: %w", errFrame, len(f.files), err)}
	}
	// The working directory travels with the clone into the new mount
	// namespace; a path would have to be searchable for the slot's uid.
	if err := os.Chdir(o.Dir); err != nil {
		return 0, 0, &stageError{"sandbox directory", err}
	}
	rules, err := s.portRules(o.Files)
	if err != nil {
		return 0, 0, err
	}
	attr := &syscall.ProcAttr{
		Env:   []string{"GODEBUG=madvdontneed=1", "GOMAXPROCS=1"},
		Files: append([]uintptr{0, 1, 2, uintptr(f.files[0])}, rules...),
		Sys:   cloneAttr(&o),
	}
	attr.Sys.PidFD = &pidfd
	// A slot of our own uid must not read or trace this process. Only who could
	// be read may write the maps of a user namespace, in which no slot sees us.
	dumpable := uintptr(0)
	if o.Namespaces.User {
		dumpable = 1
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, dumpable, 0, 0, 0); err != nil {
		return 0, 0, &stageError{"hide spawner", err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = asOwner(&o, func() (err error) {
		// The holder's runtime begins with what this thread has: until it serves,
		// its watching thread would cost as much as what it watches.
		timerslack.Set(restingSlack)
		defer timerslack.Set(timerslack.Usual)
		pid, err = syscall.ForkExec("/proc/self/exe", []string{"sandboxd", "holder"}, attr)
		return err
	})
	if err != nil {
		return 0, 0, &stageError{"clone", err}
	}
	s.holders[pid] = f.id
	return pid, pidfd, nil
}

// asOwner has the calling thread, which the caller has locked, make a user
// namespace as the slot's own user. Of what a namespace uses up, inotify
// instances for one, the kernel counts a part for the user who made it: if
// that were root for all, one slot could use up everybody's. The
// capabilities stay meanwhile, for the maps have to be written.
func asOwner(o *order, clone func() error) error {
	if !o.Namespaces.User || os.Geteuid() != 0 || len(o.IDs.Map) == 0 || o.IDs.Map[0].OutsideUID == 0 {
		return clone()
	}
	const noSetUIDFixup = 1 << 2 // SECBIT_NO_SETUID_FIXUP
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil || unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits|noSetUIDFixup), 0, 0, 0) != nil {
		return clone() // without CAP_SETPCAP the user of all is root
	}
	const same = ^uintptr(0)
	if err := thread(unix.SYS_SETRESUID, same, uintptr(o.IDs.Map[0].OutsideUID), same); err != nil {
		return fmt.Errorf("take the slot's uid: %w", err)
	}
	err = clone()
	if back := thread(unix.SYS_SETRESUID, same, 0, same); back != nil {
		return fmt.Errorf("take our own uid again: %w", errors.Join(back, err))
	}
	if back := unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits), 0, 0, 0); back != nil {
		return fmt.Errorf("restore securebits: %w", errors.Join(back, err))
	}
	return err
}

func cloneAttr(o *order) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	for _, n := range []struct {
		own  bool
		flag uintptr
	}{
		{o.Namespaces.User, unix.CLONE_NEWUSER},
		{o.Namespaces.PID, unix.CLONE_NEWPID},
		{o.Namespaces.Mount, unix.CLONE_NEWNS},
		{o.Namespaces.IPC, unix.CLONE_NEWIPC},
		{o.Namespaces.UTS, unix.CLONE_NEWUTS},
		{o.Namespaces.Cgroup, unix.CLONE_NEWCGROUP},
		{o.Namespaces.Net, unix.CLONE_NEWNET},
	} {
		if n.own {
			attr.Cloneflags |= n.flag
		}
	}
	if !o.Namespaces.User {
		return attr
	}
	privileged := os.Geteuid() == 0
	for _, m := range o.IDs.Map {
		attr.UidMappings = append(attr.UidMappings, syscall.SysProcIDMap{ContainerID: m.Inside, HostID: m.OutsideUID, Size: m.Size})
		attr.GidMappings = append(attr.GidMappings, syscall.SysProcIDMap{ContainerID: m.Inside, HostID: m.OutsideGID, Size: m.Size})
	}
	attr.GidMappingsEnableSetgroups = privileged
	// Started as its final id, the holder would lose at exec what the new
	// namespace gave it; the ambient set carries that over until it has set up.
	attr.Credential = &syscall.Credential{Uid: uint32(o.IDs.UID), Gid: uint32(o.IDs.GID), NoSetGroups: !privileged}
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		attr.AmbientCaps = append(attr.AmbientCaps, c)
	}
	return attr
}

// reap waits for holders and for whatever they left to us.
func (s *spawnerServer) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			<-s.made
			continue
		}
		s.mu.Lock()
		id, isHolder := s.holders[pid]
		delete(s.holders, pid)
		s.mu.Unlock()
		// What has lost its holder is ours now, and nobody's: it goes. Each
		// death can hand us more, so every one is followed by a look.
		s.killOrphans()
		if isHolder && id != sweepMate {
			s.conn.say(kindGone, id, []byte(strconv.Itoa(int(status))))
		}
	}
}

func (s *spawnerServer) killOrphans() (found int) {
	// Held from before the list is read, so that a child which is being made
	// is not taken for an orphan.
	s.mu.Lock()
	defer s.mu.Unlock()
	names, err := children("self")
	if err != nil {
		return 0 // no /proc: the sweep by uid remains
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err == nil && s.holders[pid] == 0 {
			unix.Kill(pid, unix.SIGKILL)
			found++
		}
	}
	return found
}

// answerSweep ends what outlived its holder, and with a uid whatever runs as
// that.
func (s *spawnerServer) answerSweep(f frame) {
	closeAll(f.files)
	request, err := decode[sweepRequest](f.body)
	if err != nil {
		s.conn.say(kindSwept, f.id, encode(sweepReport{Left: -1}))
		return
	}
	var left int
	deadline := time.Now().Add(sweepDeadline)
	for {
		orphans := s.killOrphans()
		others := 0
		if request.UID > 0 {
			others = s.killUID(request.UID)
		}
		left = orphans + others
		if left == 0 || time.Now().After(deadline) {
			break
		}
		<-time.After(sweepPause)
	}
	s.conn.say(kindSwept, f.id, encode(sweepReport{Left: left}))
}

// killUID kills all that runs as the uid, from a process that runs as it too:
// kill(-1) is the one call that no fork slips through. It returns how many it
// found.
func (s *spawnerServer) killUID(uid int) int {
	found := countUID(uid)
	if found == 0 {
		return 0
	}
	s.mu.Lock()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"sandboxd", "kill-all"}, &syscall.ProcAttr{
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: true}},
	})
	if err == nil {
		s.holders[pid] = sweepMate
	}
	s.mu.Unlock()
	return found
}

// sweepMate marks, among the holders, a process that is ours but nobody's.
const sweepMate = ^uint64(0)

// KillAllMain kills everything it may signal but itself.
func KillAllMain() int {
	if os.Geteuid() == 0 {
		return 64 // as root this would be the machine
	}
	unix.Kill(-1, unix.SIGKILL)
	return 0
}

// countUID counts the live processes of a uid.
func countUID(uid int) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err != nil {
			continue
		}
		_, line, _ := strings.Cut(string(text), "\nUid:")
		fields := strings.Fields(line)
		zombie := strings.Contains(string(text), "\nState:\tZ")
		if len(fields) > 0 && fields[0] == strconv.Itoa(uid) && !zombie {
			n++
		}
	}
	return n
}

func (s *spawnerServer) killAll() {
	s.mu.Lock()
	pids := make([]int, 0, len(s.holders))
	for pid := range s.holders {
		pids = append(pids, pid)
	}
	s.mu.Unlock()
	slices.Sort(pids)
	for _, pid := range pids {
		unix.Kill(pid, unix.SIGKILL)
	}
}
