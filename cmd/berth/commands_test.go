package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/bench"
	"berth/cmd/berth/rollout/rollouttest"
	"berth/orchestrator/poolapi"
	berthslots "berth/slots"
	"berth/slots/sandbox/sandboxtest"
)

func TestSlotsAndTopShowWhoHoldsWhat(t *testing.T) {
	p := start(t, "2")
	lease := p.hold("some\x1b[31mbody", map[string]string{"run": "7"})
	text := p.run("slots", "--json=false")
	require.Zero(t, text.status, text.stderr)
	assert.Contains(t, text.stdout, lease)
	assert.Regexp(t, `(?m) leased +some`, text.stdout)
	assert.Regexp(t, `(?m) available *$`, text.stdout)
	assert.Contains(t, text.stdout, "run=7")
	assert.Contains(t, text.stdout, "some?[31mbody", "a name must not steer the terminal")
	assert.Equal(t, 3, strings.Count(text.stdout, "\n"))
	all := decode[poolapi.Containers](t, p.run("slots").stdout).Containers
	require.Len(t, all, 1)
	assert.Len(t, all[0].Slots, 2)

	top := p.run("top", "--once", "--json=false")
	require.Zero(t, top.status, top.stderr)
	assert.Regexp(t, `(?m)^default +2 +1 +1 +0 `, top.stdout)
	assert.Regexp(t, `(?m)^default-\S+ +default +ready +\S+ +(L\.|\.L)$`, top.stdout)
	assert.NotContains(t, top.stdout, "\x1b")
	assert.Equal(t, 1, decode[view](t, p.run("top").stdout).Pools[0].Acquired)
	assert.Equal(t, 2, p.run("top", "--interval", "0s").status)
}

func TestTopDrawsAnewUntilCtrlC(t *testing.T) {
	p := start(t, "2")
	cmd := p.command("top", "--interval", "50ms")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 12, Cols: 100})
	require.NoError(t, err)
	defer tty.Close()
	var screen lockedBuffer
	read := make(chan struct{})
	go func() { // ends with the terminal
		defer close(read)
		_, _ = io.Copy(&screen, tty)
	}()
	shows := func(signs string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(screen.String(), "  "+signs+clearLine) }, patience, 10*time.Millisecond, "%q", &screen)
	}
	shows("..")
	p.hold("a", nil)
	p.hold("b", nil)
	shows("LL")
	_, err = tty.Write([]byte{3})
	require.NoError(t, err)
	assert.Zero(t, p.wait(cmd))
	<-read
	assert.True(t, strings.HasPrefix(screen.String(), otherScreen))
	assert.Contains(t, screen.String(), oldScreen, "the terminal is left as it was")
}

func TestASlotIsOneSign(t *testing.T) {
	held := &poolapi.Lease{}
	for want, s := range map[byte]poolapi.Slot{
		'.': {State: berthslots.StateAvailable}, 'L': {State: berthslots.StateAvailable, Lease: held}, 'X': {State: berthslots.StateExecuting, Lease: held},
		'r': {State: berthslots.StateAvailable, Lease: held, Releasing: true}, 's': {State: berthslots.StateStarting},
		'd': {State: berthslots.StateDraining}, '!': {State: berthslots.StateQuarantined},
	} {
		assert.Equal(t, string(want), string(sign(s)))
	}
}

func TestReleaseGivesBackWhatItIsTold(t *testing.T) {
	p := start(t, "4")
	byName, bulk := p.hold("a", nil), map[string]string{"run": "7"}
	p.hold("b", bulk)
	p.hold("c", bulk)
	p.hold("d", nil)
	got := p.run("release", "--json=false", byName)
	require.Zero(t, got.status, got.stderr)
	assert.Contains(t, got.stdout, byName+"  released, clean")
	assert.Zero(t, p.run("release", byName).status, "twice is once")
	many := decode[poolapi.ReleasedLeases](t, p.run("release", "--label", "run=7").stdout)
	assert.Len(t, many.Released, 2)
	require.Len(t, p.leases(), 1)
	assert.Len(t, decode[poolapi.ReleasedLeases](t, p.run("release", "--trajectory", "d").stdout).Released, 1)
	assert.Empty(t, p.leases())
	none := p.run("release", "--json=false", "--trajectory", "nobody")
	assert.Zero(t, none.status)
	assert.Contains(t, none.stdout, "no lease is meant")
	assert.Equal(t, 2, p.run("release").status, "never all by accident")
	bad := p.run("release", "x", "default-gone:slot_0:1")
	assert.Equal(t, 1, bad.status)
	assert.Contains(t, bad.stderr, "2 of 2 leases")
}

func TestDrainEmptiesAContainer(t *testing.T) {
	p := start(t, "1")
	lease := p.hold("a", nil)
	id, _, _ := strings.Cut(lease, ":")
	got := p.run("drain", "--json=false", id)
	require.Zero(t, got.status, got.stderr)
	assert.Contains(t, got.stdout, "draining, with 1 leases")
	require.Zero(t, p.run("exec", "--lease", lease, "true").status, "those that hold are served on")
	require.Zero(t, p.run("release", lease).status)
	got = p.run("drain", "--json=false", "--wait-gone", id)
	if got.status != 0 { // it may be gone already
		assert.Contains(t, got.stderr, "not known")
	}
	assert.Zero(t, p.run("exec", "true").status, "another one has taken its place")
	unknown := p.run("drain", "nobody")
	assert.Equal(t, 1, unknown.status)
	assert.Contains(t, unknown.stderr, "container nobody is not known")
	assert.Equal(t, 2, p.run("drain").status)
	assert.Equal(t, 2, p.run("drain", "--within", "-1s", id).status)
}

func TestCordonKeepsNewLeasesAway(t *testing.T) {
	p := start(t, "1")
	lease := p.hold("a", nil)
	id, _, _ := strings.Cut(lease, ":")
	got := p.run("cordon", "--json=false", id)
	require.Zero(t, got.status, got.stderr)
	assert.Equal(t, "container "+id+" is cordoned\n", got.stdout)
	assert.Equal(t, "cordoned", decode[poolapi.Container](t, p.run("cordon", id).stdout).State, "twice is once")
	got = p.run("cordon", "--off", "--json=false", id)
	require.Zero(t, got.status, got.stderr)
	assert.Equal(t, "container "+id+" is ready\n", got.stdout)
	require.Zero(t, p.run("release", lease).status)
	assert.Zero(t, p.run("exec", "true").status, "leases come again")
	unknown := p.run("cordon", "nobody")
	assert.Equal(t, 1, unknown.status)
	assert.Contains(t, unknown.stderr, "container nobody is not known")
	assert.Equal(t, 2, p.run("cordon").status)
}

func TestEveryCommandSaysThatNoServerAnswers(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url := "http://" + ln.Addr().String()
	require.NoError(t, ln.Close())
	b := newBerth(t)
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "file"), nil, 0o600))
	for _, args := range [][]string{
		{"exec", "true"},
		{"shell"},
		{"cp", "file", "c:slot_0:1:x"},
		{"slots"},
		{"top"},
		{"top", "--once"},
		{"release", "c:slot_0:1"},
		{"release", "--label", "a=b"},
		{"drain", "c"},
		{"cordon", "c"},
		{"bench"},
	} {
		got := b.run(append([]string{"--url", url}, args...)...)
		assert.Equal(t, exitUnreachable, got.status, "%q: %s", args, got.stderr)
		assert.Contains(t, got.stderr, "berth up", "%q", args)
		assert.Equal(t, 1, strings.Count(got.stderr, "\n"), "%q: one sentence", args)
		assert.Empty(t, got.stdout, "%q", args)
	}
}

func TestWhatIsWrongWithTheConfigurationIsSaid(t *testing.T) {
	p := start(t, "1")
	for _, c := range []struct {
		env  string
		args []string
		says string
	}{
		{"BERTH_TOKEN=wrong", []string{"slots"}, "--token-file or BERTH_TOKEN"},
		{"BERTH_TOKEN=wrong", []string{"exec", "true"}, "--token-file or BERTH_TOKEN"},
		{"BERTH_TOKEN=wrong", []string{"bench", "--url", p.said["url"].(string)}, "--token-file or BERTH_TOKEN"},
		{"HOME=/nonexistent", []string{"slots"}, "--token-file or BERTH_TOKEN"},
		{"X=", []string{"--token-file", "/does/not/exist", "slots"}, "--token-file"},
		{"X=", []string{"--token-file", os.DevNull, "slots"}, "is empty"},
		{"BERTH_URL=nonsense", []string{"slots"}, "BERTH_URL"},
	} {
		b := *p.berth
		b.env = append(slices.Clip(b.env), c.env)
		got := b.run(c.args...)
		assert.Equal(t, exitConfig, got.status, "%v: %s", c, got.stderr)
		assert.Contains(t, got.stderr, c.says, "%v", c)
	}
}

func TestUpServesUntilCtrlC(t *testing.T) {
	p := start(t, "2")
	path := p.said["token_file"].(string)
	assert.True(t, strings.HasPrefix(path, p.home), path)
	st, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.NotContains(t, strings.Join(p.up.Args, " "), strings.TrimSpace(string(text)))
	answer, err := http.Get(p.said["url"].(string) + "/v1/pools")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, http.StatusUnauthorized, answer.StatusCode, "it asks for the token")

	level, err := berthslots.ParseLevel(p.said["isolation"].(string))
	require.NoError(t, err)
	if level >= berthslots.LevelLandlock {
		thief := p.run("exec", "--", "cat", path)
		assert.NotZero(t, thief.status, "a slot must not read it")
		assert.NotContains(t, thief.stdout, strings.TrimSpace(string(text)))
	}

	cmd := p.command("exec", "--", "sh", "-c", "echo begun; sleep 1; echo done")
	var out lockedBuffer
	cmd.Stdout = &out
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return out.String() == "begun\n" }, patience, 10*time.Millisecond)
	assert.Zero(t, p.stop(), "%s", p.log)
	p.wait(cmd) // the release may come too late
	assert.Equal(t, "begun\ndone\n", out.String(), "what runs has its time to end")
	assert.NoFileExists(t, path)
	assert.Equal(t, exitUnreachable, p.run("slots").status)
}

func TestUpSaysWhyItDoesNotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	b := newBerth(t)
	dir := filepath.Join(t.TempDir(), "data")
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--listen", taken.Addr().String()}, exitConfig, "choose another address by --listen"},
		{[]string{"--listen", "127.0.0.1:0", "--", "--dance"}, exitConfig, "ended before it was ready"},
		{[]string{"--listen", "127.0.0.1:0", "--token-file", "/does/not/exist"}, exitConfig, "--token-file"},
		{[]string{"--isolation-require", "dance"}, exitUsage, "--isolation-require"},
		{[]string{"--slots", "0"}, exitUsage, "--slots"},
		{[]string{"--no-token", "--token-file", "x"}, exitUsage, "exclude"},
		{[]string{"extra"}, exitUsage, "unexpected argument"},
	} {
		got := b.run(append([]string{"up", "--data-dir", dir, "--isolation-require", "none"}, c.args...)...)
		assert.Equal(t, c.status, got.status, "%q: %s", c.args, got.stderr)
		assert.Contains(t, got.stderr, c.says, "%q", c.args)
	}
	left, err := filepath.Glob(filepath.Join(b.home, ".config/berth/tokens/*"))
	require.NoError(t, err)
	assert.Empty(t, left, "no token is left of what did not start")
}

func TestUpHasItsDirectoryForItself(t *testing.T) {
	dir := sandboxtest.DataDir(t)
	p := start(t, "1", "--data-dir", dir)
	second := p.run("up", "--listen", "127.0.0.1:0", "--containers", "1", "--slots", "1", "--data-dir", dir, "--isolation-require", "none", "--ready-within", "5s")
	assert.Equal(t, exitConfig, second.status)
	assert.Contains(t, second.stderr, dir+" is in use by another \"berth up\"")
	assert.Zero(t, p.run("exec", "true").status, "the first one goes on")
}

func TestKilledUpTakesItsOrchestratorWithIt(t *testing.T) {
	p := start(t, "1")
	require.NoError(t, p.up.Process.Kill())
	<-p.ended
	address := strings.TrimPrefix(p.said["url"].(string), "http://")
	require.Eventually(t, func() bool {
		ln, err := net.Listen("tcp", address)
		return err == nil && ln.Close() == nil
	}, patience, 20*time.Millisecond, "the next one can have the address")
}

func TestUpWithoutATokenAsksNobody(t *testing.T) {
	p := start(t, "1", "--no-token")
	assert.Empty(t, p.said["token_file"])
	assert.Zero(t, p.run("exec", "true").status)
}

func TestDoctorSaysWhatIsWrong(t *testing.T) {
	p := start(t, "1")
	type report struct {
		OK       bool
		Findings []finding
	}
	verdicts := func(got ran) map[string]string {
		t.Helper()
		out := map[string]string{}
		for _, f := range decode[report](t, got.stdout).Findings {
			out[f.What] = f.Verdict
			if f.Verdict != verdictOK {
				assert.NotEmpty(t, f.Mend, f.What)
			}
		}
		return out
	}
	v := verdicts(p.run("doctor", "--data-dir", p.home))
	for _, what := range []string{"sandboxd", "orchestrator", "server", "token", "slots"} {
		assert.Equal(t, verdictOK, v[what], what)
	}
	assert.Contains(t, v, "isolation")
	assert.Contains(t, v, "disk")
	p.hold("a", nil)
	assert.Equal(t, verdictWarn, verdicts(p.run("doctor"))["slots"])

	p.env = append(p.env, "BERTH_TOKEN=wrong")
	wrong := p.run("doctor")
	assert.Equal(t, 1, wrong.status)
	assert.Equal(t, verdictFail, verdicts(wrong)["token"])
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer stranger.Close()
	go func() { // ends with the listener
		for {
			c, err := stranger.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	taken := p.run("--url", "http://"+stranger.Addr().String(), "doctor", "--json=false")
	assert.Equal(t, 1, taken.status)
	assert.Regexp(t, `(?m)^FAIL +server .* taken by`, taken.stdout)
	assert.Contains(t, taken.stdout, "mend: ")

	alone := newBerth(t) // berth without its programs
	text, err := os.ReadFile(programs.path(t, "berth"))
	require.NoError(t, err)
	lone := filepath.Join(alone.dir, "berth")
	require.NoError(t, os.WriteFile(lone, text, 0o755))
	cmd := alone.command("doctor")
	cmd.Path, cmd.Env = lone, append(cmd.Env, "PATH=/nonexistent")
	out, err := cmd.Output()
	require.Error(t, err)
	v = verdicts(ran{stdout: string(out)})
	assert.Equal(t, verdictFail, v["sandboxd"])
	assert.Equal(t, verdictFail, v["orchestrator"])
	assert.Equal(t, verdictWarn, v["server"], "nobody was named")
	cmd = alone.command("up")
	cmd.Path, cmd.Env = lone, append(cmd.Env, "PATH=/nonexistent")
	require.NoError(t, cmd.Start())
	assert.Equal(t, exitConfig, alone.wait(cmd))
}

func TestBenchMeasuresAnyServerOfEitherProtocol(t *testing.T) {
	p := start(t, "2")
	report := decode[bench.Report](t, p.run("bench", "--url", p.said["url"].(string), "--workers", "2", "--calls", "20").stdout)
	assert.Equal(t, "trajectories", report.Protocol)
	assert.Zero(t, report.Failed, report.FirstFailure)
	assert.Positive(t, report.PerSecond)
	assert.Positive(t, report.FloorPerSecond)
	assert.Positive(t, report.P50MS)
	assert.Empty(t, p.leases(), "it leaves no trajectory behind")

	container := httptest.NewServer(rollouttest.Container{Dir: t.TempDir(), Slots: 2})
	defer container.Close()
	got := p.run("bench", "--url", container.URL, "--calls", "20", "--json=false")
	require.Zero(t, got.status, got.stderr)
	assert.Regexp(t, `(?m)^ +2 at once +[0-9]+ `, got.stdout, "no more workers than slots")
	assert.Contains(t, got.stdout, "fork and exec here")
	assert.Contains(t, got.stderr, "protocol of slots")
	failing := p.run("bench", "--url", container.URL, "--calls", "20", "--command", "exit 3")
	assert.Equal(t, 1, failing.status)
	assert.Contains(t, failing.stderr, "Exit code: 3")
	assert.Equal(t, 22, decode[bench.Report](t, failing.stdout).Failed)
	stranger := httptest.NewServer(http.NotFoundHandler())
	defer stranger.Close()
	odd := p.run("bench", "--url", stranger.URL)
	assert.Equal(t, 1, odd.status)
	assert.Contains(t, odd.stderr, "neither protocol")
	for _, args := range [][]string{{"--protocol", "dance"}, {"--workers", "0"}, {"--calls", "1"}} {
		assert.Equal(t, 2, p.run(append([]string{"bench", "--url", stranger.URL}, args...)...).status, "%q", args)
	}
}

func TestHelpSaysTheExitStatusesAndCompletionIsThere(t *testing.T) {
	b := newBerth(t)
	for _, args := range [][]string{{"--help"}, {"exec", "--help"}, {"up", "--help"}} {
		got := b.run(args...)
		assert.Zero(t, got.status)
		for _, status := range []string{"  2 ", "  69 ", "  78 ", "124", "130"} {
			assert.Contains(t, got.stdout, status, "%q", args)
		}
	}
	assert.Contains(t, b.run("completion", "bash").stdout, "berth")
	assert.Equal(t, "test", decode[map[string]string](t, b.run("version", "--json").stdout)["version"])
	assert.Contains(t, b.run("exce").stderr, `did you mean "exec"?`)
}
