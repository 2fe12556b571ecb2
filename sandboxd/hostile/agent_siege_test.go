package hostile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
	"berth/slots/sandbox/sandboxtest"
)

var attacker struct {
	once sync.Once
	text []byte
	err  error
}

// attackProgram builds testdata/attacker once and returns the binary.
func attackProgram(t *testing.T) []byte {
	t.Helper()
	attacker.once.Do(func() {
		if built := os.Getenv("BERTH_ATTACKER"); built != "" { // where only the test program was brought
			attacker.text, attacker.err = os.ReadFile(built)
			return
		}
		at := filepath.Join(sandboxtest.DataDir(t), "attacker")
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", at, "./testdata/attacker")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		if attacker.err = err; err != nil {
			attacker.err = fmt.Errorf("%w: %s", err, out)
			return
		}
		attacker.text, attacker.err = os.ReadFile(at)
	})
	require.NoError(t, attacker.err, "build attacker")
	return attacker.text
}

// held is what the attack program says that it has, as the neighbour.
type held struct {
	TCP, UDP, Abstract, Path, Pty string
	Left, Notes                   []string
}

// targets is what the attack program is told.
type targets struct {
	AgentPID   int      `json:"agent_pid"`
	AgentPort  int      `json:"agent_port"`
	Token      string   `json:"token"`
	Pids       []int    `json:"pids"`
	Others     []int    `json:"others"`
	Binaries   []string `json:"binaries"`
	Scratch    string   `json:"scratch"`
	Secret     string   `json:"secret"`
	Files      []string `json:"files"`
	AgentFiles []string `json:"agent_files"`
	Scheduler  []string `json:"scheduler"`
	Sockets    []string `json:"sockets"`
	Addresses  []string `json:"addresses"`
	Held       held     `json:"held"`
	Marker     string   `json:"marker"`
	Key        int      `json:"key"`
}

// found is what one probe of the attack program came to.
type found struct {
	Name string `json:"name"`
	Open bool   `json:"open"`
	Note string `json:"note"`
}

// siege is one agent under attack: the attacker is in slot_0, the neighbour
// in slot_1 holds what others must not get, slot_2 changes its tenant.
type siege struct {
	*agenttest.Agent
	set       setting
	isolation slots.Isolation
	targets   targets
	home      string // of the agent's and the scheduler's directories
}

// assault is one case of the catalogue. Probes are run in slot_0; each names
// the isolation from which on it must fail, as slots.ParseRequirement reads
// it. A probe that could harm more than the slot has a "!" before that: it is
// only run where it must fail.
type assault struct {
	id     string
	probes map[string]string
	run    func(*testing.T, *siege)
}

// besiege runs the cases at every level, one agent for each.
func besiege(t *testing.T, cases []assault, more ...string) {
	attackProgram(t)
	for _, set := range settings(t) {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			s := newSiege(t, set, more...)
			for _, c := range cases {
				t.Run(c.id, func(t *testing.T) {
					if !s.Alive() {
						t.Fatalf("an earlier attack has ended the agent\n%s", s.Log())
					}
					s.Watch(t, agenttest.Bounds{Renew: func() { s.restore(t) }}, func() {
						s.try(t, c.probes)
						if c.run != nil {
							c.run(t, s)
						}
					})
				})
			}
			assert.NotContains(t, s.Log(), s.Token, "the token is in the log")
			assert.NotContains(t, s.Log(), "panic")
		})
	}
}

// sieges counts them: objects that the whole machine knows by a number have
// one of their own in each.
var sieges atomic.Int32

func newSiege(t *testing.T, set setting, more ...string) *siege {
	t.Helper()
	s := &siege{set: set, home: publicDir(t)}
	s.targets.Secret = fmt.Sprintf("secret%d", time.Now().UnixNano())
	// The next tenant has the number after.
	s.targets.Key = 0x62000000 + os.Getpid()%0x8000<<8 + 2*int(sieges.Add(1))
	t.Cleanup(func() { // what weak levels let slots leave
		for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run", "/run/lock"} {
			left, _ := filepath.Glob(filepath.Join(dir, "berth-hostile-*"+s.targets.Secret+"*"))
			for _, path := range left {
				os.RemoveAll(path) // best effort
			}
		}
	})
	secrets := s.scheduler(t)
	s.Agent = agenttest.Start(t, agenttest.Options{
		Level: set.level, UID: set.uid, Slots: 3, Dir: filepath.Join(s.home, "data"),
		Args: append([]string{"--listen", "[::]:0", "--log-level", "trace", "--drain-timeout", "2s"}, more...),
		Env: []string{
			"NOMAD_TOKEN=" + s.targets.Secret, "VAULT_TOKEN=" + s.targets.Secret, "AWS_SECRET_ACCESS_KEY=" + s.targets.Secret,
			"NOMAD_SECRETS_DIR=" + secrets,
		},
	})
	h, err := s.Health(t.Context())
	require.NoError(t, err)
	s.isolation = h.Isolation
	t.Logf("level %s, axes %v, weak %q", h.Isolation.Level, h.Isolation.Axes, h.Isolation.Weak)
	s.aim(t)
	s.arm(t, "slot_0")
	s.settle(t)
	return s
}

// publicDir is a directory outside /tmp, where slots see the container's own
// files.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/opt", "berth-hostile-") //nolint:usetesting // see above
	if err != nil {
		return sandboxtest.DataDir(t)
	}
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { exec.Command("rm", "-rf", "--one-file-system", dir).Run() }) // best effort
	return dir
}

// scheduler makes a directory as Nomad makes it for a task without a user:
// open to everybody.
func (s *siege) scheduler(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(s.home, "secrets")
	require.NoError(t, os.Mkdir(dir, 0o777))
	require.NoError(t, os.Chmod(dir, 0o777))
	token, socket := filepath.Join(dir, "nomad_token"), filepath.Join(dir, "api.sock")
	require.NoError(t, os.WriteFile(token, []byte(s.targets.Secret), 0o666))
	require.NoError(t, os.Chmod(token, 0o666))
	ln, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	require.NoError(t, os.Chmod(socket, 0o666))
	s.targets.Scheduler, s.targets.Sockets = []string{token}, []string{socket}
	return dir
}

// aim finds the agent's processes and files.
func (s *siege) aim(t *testing.T) {
	t.Helper()
	s.targets.AgentPID, s.targets.AgentPort, s.targets.Token = s.PID, s.Port, s.Token
	s.targets.Pids = []int{s.PID}
	for _, pid := range childrenOf(s.PID) {
		if slices.Contains(cmdline(pid), "spawner") {
			s.targets.Pids = append(s.targets.Pids, pid)
		}
	}
	require.Len(t, s.targets.Pids, 2, "agent and spawner")
	private := filepath.Join(s.Dir, "private")
	require.NoError(t, os.WriteFile(private, []byte(s.targets.Secret), 0o600))
	if s.set.uid != 0 {
		require.NoError(t, os.Chown(private, s.set.uid, s.set.uid))
	}
	s.targets.AgentFiles = []string{private, filepath.Join(s.Dir, "token"), filepath.Join(s.Dir, "lock")}
	s.targets.Scratch = os.TempDir()
	s.targets.Binaries = []string{filepath.Join(s.Dir, "sandboxes", "view", "agent"), "/run/berth-agent", sandboxtest.Agent(t)}
	for _, a := range []string{"127.0.0.1:0", "[::]:0"} {
		ln, err := net.Listen("tcp", a)
		require.NoError(t, err)
		t.Cleanup(func() { ln.Close() })
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		s.targets.Addresses = append(s.targets.Addresses, "127.0.0.1:"+port)
		if a == "[::]:0" {
			own, _ := net.InterfaceAddrs()
			for _, o := range own {
				if ip, _, err := net.ParseCIDR(o.String()); err == nil && !ip.IsLinkLocalUnicast() {
					s.targets.Addresses = append(s.targets.Addresses, net.JoinHostPort(ip.String(), port))
				}
			}
		}
	}
	s.targets.Addresses = append(s.targets.Addresses,
		"169.254.169.254:80", "[fd00:ec2::254]:80", "168.63.129.16:80", "100.100.100.200:80", "127.0.0.1:4646", "127.0.0.1:8500", "127.0.0.1:2375", "172.17.0.1:22")
}

// arm puts the attack program into a slot.
func (s *siege) arm(t *testing.T, slot string) {
	t.Helper()
	text := attackProgram(t)
	_, err := s.PutFile(t.Context(), client.Place{SlotID: slot, Path: "attacker"}, bytes.NewReader(text), client.PutOptions{Length: int64(len(text)), Mode: 0o755})
	require.NoError(t, err)
}

// settle has the neighbour make what is worth stealing, and finds it.
func (s *siege) settle(t *testing.T) {
	t.Helper()
	s.targets.Held = s.hold(t, "slot_1")
	t.Logf("the neighbour has %+v", s.targets.Held)
	for _, dir := range procDirs() {
		if words := cmdline(dir); len(words) > 1 && words[1] == "hold" && slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, s.targets.Secret) }) {
			s.targets.Others = append(s.targets.Others, dir)
		}
	}
	require.Len(t, s.targets.Others, 1, "the neighbour's process")
	for at := s.targets.Others[0]; at > 1 && at != s.targets.Pids[1]; at = parent(at) { // its trampoline and holder
		if at != s.targets.Others[0] {
			s.targets.Others = append(s.targets.Others, at)
		}
	}
	live, err := filepath.EvalSymlinks(filepath.Join(s.Dir, "sandboxes", "slots", "slot_1"))
	require.NoError(t, err)
	s.targets.Files = []string{filepath.Join(live, "workspace", "secret"), filepath.Join(s.Dir, "sandboxes", "slots", "slot_1", "workspace", "secret")}
	s.targets.Sockets = append(s.targets.Sockets, filepath.Join(live, "workspace", "s"))
	require.FileExists(t, s.targets.Files[0])
}

// hold starts the attack program as one that owns things, in the background.
func (s *siege) hold(t *testing.T, slot string) held {
	t.Helper()
	s.arm(t, slot)
	text, err := json.Marshal(targets{Secret: s.targets.Secret, Key: s.targets.Key})
	require.NoError(t, err)
	r, err := s.Tool(slot, "bash", map[string]any{
		"background": true, "env": map[string]string{"SECRET_OF_THE_NEIGHBOUR": s.targets.Secret},
		"command": "./attacker hold '" + string(text) + "' >held 2>&1 & for i in {1..200}; do [ -s held ] && break; sleep 0.05; done; cat held",
	}, 120)
	require.NoError(t, err)
	var h held
	require.NoError(t, json.Unmarshal([]byte(r.Output), &h), "%+v", r)
	return h
}

// promised reports whether the isolation in force meets a requirement.
func (s *siege) promised(t *testing.T, needs string) bool {
	t.Helper()
	r, err := slots.ParseRequirement(needs)
	require.NoError(t, err)
	return len(r.Unmet(s.isolation)) == 0
}

// try runs the probes and judges them by what is promised.
func (s *siege) try(t *testing.T, probes map[string]string) {
	t.Helper()
	var names []string
	for name, needs := range probes {
		if harmful, is := strings.CutPrefix(needs, "!"); is && !s.promised(t, harmful) {
			t.Logf("%s: not promised (needs %s), and not tried: it could do harm", name, harmful)
			continue
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	for _, f := range s.fire(t, "slot_0", nil, names...) {
		s.judge(t, f, strings.TrimPrefix(probes[f.Name], "!"))
	}
}

func (s *siege) judge(t *testing.T, f found, needs string) {
	t.Helper()
	switch {
	case s.promised(t, needs):
		assert.False(t, f.Open, "%s works, though %s is met: %s", f.Name, needs, f.Note)
		t.Logf("%s: held: %s", f.Name, f.Note)
	case f.Open:
		t.Logf("%s: not promised (needs %s), and open: %s", f.Name, needs, f.Note)
	default:
		t.Logf("%s: not promised (needs %s), but held: %s", f.Name, needs, f.Note)
	}
}

// fire runs probes in a slot, each of which must come to a result.
func (s *siege) fire(t *testing.T, slot string, args map[string]any, names ...string) []found {
	t.Helper()
	r, err := s.launch(slot, args, names...)
	require.NoError(t, err)
	var all []found
	for line := range strings.Lines(r.Output) {
		var f found
		if json.Unmarshal([]byte(line), &f) == nil && f.Name != "" {
			all = append(all, f)
		}
	}
	require.Len(t, all, len(names), "%s %s: %+v", r.Output, r.Error, r.Metadata)
	return all
}

// launch runs probes in a slot, whatever comes of it.
func (s *siege) launch(slot string, args map[string]any, names ...string) (api.Result, error) {
	text, err := json.Marshal(s.targets)
	if err != nil {
		return api.Result{}, err
	}
	all := map[string]any{"command": "./attacker run '" + string(text) + "' " + strings.Join(names, " ")}
	maps.Copy(all, args)
	return s.Tool(slot, "bash", all, 180) // a slow machine's 5
}

// usable waits until a slot works again: it may have lost its holder.
func (s *siege) usable(t *testing.T, slot string) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, err := s.Try(slot, "echo works", 10)
		return err == nil && strings.TrimSpace(r.Output) == "works"
	}, agenttest.Patient(20*time.Second), 50*time.Millisecond, "%s does not work any more", slot)
}

// renew gives a slot a new tenant.
func (s *siege) renew(t *testing.T, slot string) {
	t.Helper()
	receipt, err := s.Reset(t.Context(), slot, nil)
	require.NoError(t, err)
	require.True(t, receipt.Clean, "%+v", receipt)
}

// restore makes the attacker's slots as they were before an attack.
func (s *siege) restore(t *testing.T) {
	t.Helper()
	for _, slot := range []string{"slot_0", "slot_2"} {
		s.renew(t, slot)
	}
	s.arm(t, "slot_0")
}

// inside is where the agent keeps a slot's workspace.
func (s *siege) inside(slot string, parts ...string) string {
	return filepath.Join(append([]string{s.Dir, "sandboxes", "slots", slot, "workspace"}, parts...)...)
}

func procDirs() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func cmdline(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
}

func childrenOf(pid int) []int {
	var all []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for word := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

func parent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, line, _ := strings.Cut(string(text), "\nPPid:")
	line, _, _ = strings.Cut(line, "\n")
	ppid, _ := strconv.Atoi(strings.TrimSpace(line))
	return ppid
}

// isProc reports whether a directory is in a mounted procfs.
func isProc(path string) bool {
	const magic = 0x9fa0
	var st syscall.Statfs_t
	return syscall.Statfs(path, &st) == nil && st.Type == magic
}

// ownedBy lists what a user owns in the places that slots may share.
func ownedBy(uid int) []string {
	var all []string
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock"} {
		filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error { // what cannot be read is not counted
			if err != nil {
				return nil
			}
			if d.IsDir() && d.Name() == "proc" && isProc(path) {
				return filepath.SkipDir // of somebody's root: who runs as a uid is asked elsewhere
			}
			if path != dir && d.IsDir() && (strings.HasPrefix(d.Name(), "berth") || strings.HasPrefix(d.Name(), "go-build")) && strings.Count(path, "/") == 2 {
				return filepath.SkipDir
			}
			info, err := d.Info()
			if err != nil {
				return nil
			}
			if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == uid {
				all = append(all, path)
			}
			return nil
		})
	}
	return all
}
