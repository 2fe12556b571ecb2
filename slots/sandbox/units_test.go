package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
	"berth/slots/probe"
)

func TestTheLadderGoesDownAndNeverAboveTheAttempt(t *testing.T) {
	everything := probe.Facts{Caps: ^uint64(0), LandlockABI: 7}
	names := func(f probe.Facts, l slots.Level) (names []string) {
		for _, m := range ladder(f, l) {
			names = append(names, m.name)
		}
		return names
	}
	assert.Equal(t, []string{"nothing"}, names(everything, slots.LevelNone))
	assert.Equal(t, []string{"limits and filter", "nothing"}, names(everything, slots.LevelBasic))
	assert.Equal(t, []string{"Landlock", "limits and filter", "nothing"}, names(everything, slots.LevelLandlock))
	assert.Equal(t, []string{"uids", "Landlock", "limits and filter", "nothing"}, names(everything, slots.LevelUID))
	assert.Equal(t, "uids and Landlock", names(everything, slots.LevelUIDLandlock)[0])
	assert.Contains(t, names(everything, slots.LevelNS), "namespaces of root, moved root")
	user := probe.Facts{LandlockABI: 2}
	assert.NotContains(t, names(user, slots.LevelNSCgroup), "uids")
	assert.NotContains(t, names(user, slots.LevelNSCgroup), "namespaces of root, fresh /proc")
	assert.NotContains(t, names(probe.Facts{Caps: ^uint64(0)}, slots.LevelNSCgroup), "Landlock")
	for _, l := range slots.Levels() {
		for _, m := range ladder(everything, l) {
			h := &Host{facts: everything, config: Config{Network: true}}
			assert.LessOrEqual(t, m.axes(h).Level(), max(l, slots.LevelNS), m.name)
			assert.Equal(t, m.name != "nothing", m.confined)
		}
	}
}

func TestRootsProcessesAreNotClaimedToBeLimited(t *testing.T) {
	m := mechanism{files: true, confined: true}
	h := &Host{facts: probe.Facts{UID: 0, LandlockABI: 7}}
	assert.Equal(t, "none", m.axes(h)[slots.AxisPids])
	h.facts.UID = 1000
	assert.Equal(t, "rlimit", m.axes(h)[slots.AxisPids])
	m.ids = true
	h.facts.UID = 0
	assert.Equal(t, "rlimit", m.axes(h)[slots.AxisPids])
}

func TestRefusedAttemptsSayHowToMendThem(t *testing.T) {
	for _, c := range []struct {
		stage string
		errno unix.Errno
		want  string
	}{
		{"clone", unix.EPERM, "seccomp="},
		{"clone", unix.ENOSPC, "max_user_namespaces"},
		{"clone", unix.EUSERS, "max_user_namespaces"},
		{"root", unix.EACCES, "apparmor="},
		{"root", unix.EPERM, "masks /proc"},
		{"ids", unix.EPERM, "CAP_SETUID"},
		{"groups", unix.EPERM, "CAP_SETGID"},
		{"landlock", unix.ENOSYS, "5.13"},
		{"seccomp", unix.EINVAL, "seccomp filters"},
		{"elsewhere", unix.EIO, ""},
	} {
		a := refused(mechanism{name: "m"}, fmt.Errorf("x: %w", &holder.StageError{Stage: c.stage, Errno: int(c.errno), Text: "t"}))
		assert.Equal(t, c.stage, a.Stage)
		assert.Equal(t, unix.ErrnoName(c.errno), a.Errno)
		assert.Contains(t, a.Mend, c.want)
		err := &UnmetError{Attempts: []Attempt{a, {Mechanism: "the one that held"}}}
		assert.Contains(t, err.Error(), "tried m: ")
		assert.NotContains(t, err.Error(), "the one that held")
	}
	assert.Empty(t, refused(mechanism{}, errors.New("plain")).Stage)
}

func TestUIDsRunOut(t *testing.T) {
	p := uidPool{first: 5000, width: 1}
	for n := range maxUIDs {
		uid, err := p.take()
		require.NoError(t, err)
		require.Equal(t, 5000+n, uid)
	}
	_, err := p.take()
	require.Error(t, err, "and none beyond the range is handed out")
	p.give(5007)
	p.give(4999)
	p.give(5000 + maxUIDs)
	uid, err := p.take()
	require.NoError(t, err)
	assert.Equal(t, 5007, uid)
}

func TestIPCTablesAreReadByTheirColumns(t *testing.T) {
	table := filepath.Join(t.TempDir(), "shm")
	for _, c := range []struct {
		text string
		want []int
		bad  bool
	}{
		{text: "       key      shmid perms   uid   gid\n         0     7     600  61001 61001\n 0 8 600 0 0\n 0 9 600 61001 0\n", want: []int{7, 9}},
		{text: " key semid uid\n"},
		{text: " key msqid uid\n short\n 1 x 61001\n"},
		{text: "nothing known\n", bad: true},
		{text: "", bad: true},
	} {
		require.NoError(t, os.WriteFile(table, []byte(c.text), 0o600))
		ids, err := ipcOwned(table, 61001)
		assert.Equal(t, c.bad, err != nil, "%q", c.text)
		assert.Equal(t, c.want, ids, "%q", c.text)
	}
	ids, err := ipcOwned(table+"-missing", 61001)
	require.NoError(t, err, "a kernel without them")
	assert.Empty(t, ids)
}

func TestOnlyFilesOfTheUIDAreRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: changes owners")
	}
	dir := t.TempDir()
	for name, uid := range map[string]int{"theirs": 61001, "others": 61002, "ours": 0} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name, "sub"), 0o755))
		require.NoError(t, os.Chown(filepath.Join(dir, name), uid, uid))
	}
	require.NoError(t, os.Symlink("others", filepath.Join(dir, "link")))
	require.NoError(t, os.Lchown(filepath.Join(dir, "link"), 61001, 61001))
	require.NoError(t, removeOwned(context.Background(), dir, 61001))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"others", "ours"}, names)
	assert.NoError(t, removeOwned(context.Background(), filepath.Join(dir, "missing"), 61001))
}

func TestHiddenPathsStayHidden(t *testing.T) {
	for _, c := range []struct {
		path, dir string
		want      bool
	}{{"/a/b", "/a", true}, {"/a", "/a", true}, {"/ab", "/a", false}, {"/a", "/", true}, {"/", "/a", false}} {
		assert.Equal(t, c.want, below(c.path, c.dir), "%s in %s", c.path, c.dir)
	}
	h := &Host{config: Config{DataDir: "/var/lib/berth", Hide: []string{"/etc/secret/", "relative", "/etc/secret"}}}
	assert.Equal(t, []string{"/etc/secret", "/var/lib/berth"}, h.hidden(mechanism{}))
	dirs, _ := h.readable(mechanism{})
	for _, d := range dirs {
		for _, hidden := range []string{"/var/lib/berth", "/tmp", "/run", "/dev"} {
			assert.False(t, below(hidden, d), "%s shows %s", d, hidden)
		}
	}
}

func TestTheAgentsBinaryIsCopiedWhereALinkWouldNotRun(t *testing.T) {
	dir := t.TempDir()
	l := layout{filepath.Join(dir, "data")}
	exe := filepath.Join(dir, "exe")
	require.NoError(t, os.WriteFile(exe, []byte("program"), 0o700))
	for range 2 {
		require.NoError(t, l.prepare(exe))
		st, err := os.Stat(l.path("view", "agent"))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o755), st.Mode().Perm())
	}
	assert.Error(t, l.prepare(filepath.Join(dir, "missing")))
}

func TestQuietnessNeedsBothPipesEmpty(t *testing.T) {
	read, write, err := new(instance).pipe()
	require.NoError(t, err)
	defer unix.Close(write)
	s := &streams{out: []*pump{{file: os.NewFile(uintptr(read), "p"), done: make(chan struct{})}}}
	assert.True(t, s.empty())
	_, err = unix.Write(write, []byte("x"))
	require.NoError(t, err)
	assert.False(t, s.empty())
	s.out[0].file.Close()
	assert.True(t, s.empty(), "one that was read to its end")
}

// slowWriter takes its time, as a goroutine does whose thread has to wait.
type slowWriter struct{ begun, free chan struct{} }

func (w slowWriter) Write(p []byte) (int, error) {
	close(w.begun)
	<-w.free
	return len(p), nil
}

func TestAPipeIsNotEmptyWhileItsLastBytesAreOnTheirWay(t *testing.T) {
	read, write, err := new(instance).pipe()
	require.NoError(t, err)
	defer unix.Close(write)
	w := slowWriter{make(chan struct{}), make(chan struct{})}
	s := &streams{out: []*pump{startPump(read, w)}}
	_, err = unix.Write(write, []byte("x"))
	require.NoError(t, err)
	<-w.begun
	empty := make(chan bool)
	go func() { empty <- s.empty() }()
	select {
	case <-empty:
		t.Fatal("it was said before they had arrived")
	case <-time.After(50 * time.Millisecond):
	}
	close(w.free)
	assert.True(t, <-empty)
}

func TestWhatWasWrittenInTimeIsReadThoughThePumpGetsNoTurn(t *testing.T) {
	pipe := func() (*pump, *os.File, *bytes.Buffer) {
		read, write, err := os.Pipe()
		require.NoError(t, err)
		var got bytes.Buffer
		p := &pump{file: read, done: make(chan struct{}), to: &got} // nobody runs it
		t.Cleanup(func() { read.Close(); write.Close() })
		return p, write, &got
	}
	closed, end, first := pipe()
	_, err := end.WriteString("all of it")
	require.NoError(t, err)
	require.NoError(t, end.Close())
	open, end, second := pipe()
	_, err = end.WriteString("a part")
	require.NoError(t, err)
	assert.False(t, (&streams{out: []*pump{closed, open}}).finish(time.Millisecond), "more can come")
	assert.Equal(t, "all of it", first.String())
	assert.Equal(t, "a part", second.String())
	assert.True(t, (&streams{out: []*pump{closed}}).finish(time.Millisecond))

	// Whose word is there has begun, and whose pipe somebody still holds may.
	job := func(p *pump, result *counted) bool { return (&streams{out: []*pump{nil, nil, p}}).begun(result) }
	told, silent := &counted{}, &counted{}
	closed.to, open.to = told, silent
	assert.False(t, job(closed, told), "it ended without a word")
	assert.True(t, job(open, silent))
	late, end, _ := pipe()
	late.to = told
	_, err = end.WriteString("T")
	require.NoError(t, err)
	require.NoError(t, end.Close())
	assert.True(t, job(late, told))

	// A writer that never ends holds nothing up.
	busy, end, _ := pipe()
	busy.to = nil
	ending := make(chan struct{})
	go func() {
		defer close(ending)
		for err := error(nil); err == nil; {
			_, err = end.Write(make([]byte, 64<<10))
		}
	}()
	assert.False(t, busy.catchUp())
	require.NoError(t, busy.file.Close())
	<-ending
	assert.True(t, busy.catchUp(), "the pump has closed it")
}

func TestATreeFarFromItsLimitIsNotWalkedAfterAShortCommand(t *testing.T) {
	const gib = 1 << 30
	limits := slots.Limits{DiskBytes: 2 * gib, DiskFiles: 100_000}
	for _, x := range []struct {
		name string
		at   *atWork
		free int64
		due  bool
	}{
		{"far from it", &atWork{disk: diskSize{gib, 100}, diskFree: 50 * gib, unseen: 5 * time.Millisecond}, 50 * gib, false},
		{"others have freed some", &atWork{disk: diskSize{gib, 100}, diskFree: 50 * gib, unseen: 5 * time.Millisecond}, 60 * gib, false},
		{"much has gone at once", &atWork{disk: diskSize{gib, 100}, diskFree: 50 * gib, unseen: 5 * time.Millisecond}, 48 * gib, true},
		{"nobody has looked for long", &atWork{disk: diskSize{gib, 100}, diskFree: 50 * gib, unseen: time.Second}, 50 * gib, true},
		{"near it", &atWork{disk: diskSize{2*gib - 100, 100}, diskFree: 50 * gib, unseen: 5 * time.Millisecond}, 50 * gib, true},
		{"near the limit of files", &atWork{disk: diskSize{gib, 99_990}, diskFree: 50 * gib, unseen: 5 * time.Millisecond}, 50 * gib, true},
		{"beyond it", &atWork{disk: diskSize{3 * gib, 100}, diskFree: 50 * gib}, 50 * gib, true},
	} {
		assert.Equal(t, x.due, x.at.mayBeBeyondLocked(limits, x.free), x.name)
	}
	assert.False(t, (&atWork{disk: diskSize{gib, 1 << 40}, unseen: 5 * time.Millisecond}).mayBeBeyondLocked(slots.Limits{DiskBytes: 2 * gib}, 0), "what has no limit")
	assert.True(t, (&atWork{disk: diskSize{1 << 50, 10}}).mayBeBeyondLocked(slots.Limits{DiskFiles: 1}, 0))
}
