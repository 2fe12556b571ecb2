package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
)

func TestPausesGrowToTheirMostAndDiffer(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Max: time.Second}
	for crashes, most := range map[int]time.Duration{1: 100, 2: 200, 3: 400, 4: 800, 5: 1000, 60: 1000, 1 << 30: 1000} {
		most *= time.Millisecond
		seen := map[time.Duration]bool{}
		for range 50 {
			pause := b.pause(crashes)
			assert.GreaterOrEqual(t, pause, most/2)
			assert.LessOrEqual(t, pause, most)
			seen[pause] = true
		}
		assert.Greater(t, len(seen), 10)
	}
}

func TestAProcessIsReadWhateverItsNameIs(t *testing.T) {
	rest := strings.Repeat(" 1", 18) + " 12345 7 8\n"
	for _, name := range []string{"sandboxd", "a b", "a) R 1 (b", ")", "((("} {
		letter, start, err := parseStat([]byte("42 (" + name + ") S" + rest))
		require.NoError(t, err)
		assert.Equal(t, byte('S'), letter)
		assert.Equal(t, uint64(12345), start)
	}
	for _, text := range []string{"", "42", "42 (x)", "42 (x) S 1 2", "42 (x) SS" + rest, "42 (x) S" + strings.Repeat(" 1", 18) + " -5"} {
		_, _, err := parseStat([]byte(text))
		assert.Error(t, err, text)
	}
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("42 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"))
	f.Fuzz(func(t *testing.T, text []byte) {
		letter, _, err := parseStat(text)
		assert.Equal(t, err != nil, letter == 0)
	})
}

func TestOnlyWhatServesTheDirectoryIsOurs(t *testing.T) {
	for args, want := range map[string]bool{
		"serve\x00--slots\x001\x00--data-dir\x00/x/data\x00": true,
		"serve\x00--data-dir\x00/x/data/more\x00":            false,
		"serve\x00--data-dir\x00":                            false,
		"serve\x00--data-dir":                                false,
		"serve\x00":                                          false,
		"probe\x00--data-dir\x00/x/data\x00":                 false,
		"":                                                   false,
	} {
		assert.Equal(t, want, servesDirectory("sandboxd\x00"+args, "/x/data"), "%q", args)
	}
	assert.False(t, servesDirectory("", "/x/data"))
	assert.False(t, serves(1<<30, "/x/data"), "there is no such process")
}

func TestAProcessThatIsNotAsNotedIsGone(t *testing.T) {
	own, err := identify(os.Getpid())
	require.NoError(t, err)
	for _, id := range []identity{{}, own, {PID: 1 << 30, Start: own.Start, Boot: own.Boot}, {PID: -1}, {PID: own.PID, Start: own.Start, Boot: "x"}} {
		_, err := open(id, "/x/data")
		require.ErrorIs(t, err, errGone, "%+v", id)
	}
	_, err = search("/x/data")
	assert.ErrorIs(t, err, errGone)
}

func TestAChildIsReapedWithItsStatus(t *testing.T) {
	for command, want := range map[string]string{"exit 3": "ended with status 3", "kill -15 $$": "ended by signal 15 (terminated)"} {
		handle, err := os.StartProcess("/bin/sh", []string{"sh", "-c", command}, &os.ProcAttr{})
		require.NoError(t, err)
		p := &process{handle: handle, code: -1}
		p.identity, err = identify(handle.Pid)
		require.NoError(t, err)
		require.True(t, p.endsWithin(time.Minute))
		assert.Equal(t, want, p.status)
		_, err = os.Stat(fmt.Sprintf("/proc/%d", p.PID))
		require.ErrorIs(t, err, os.ErrNotExist, "a zombie is left")
		require.NoError(t, p.signal(os.Kill), "to signal what is gone is no error")
		p.close()
	}
}

func TestALogIsPutAsideWhenItIsLong(t *testing.T) {
	d := directory(t.TempDir())
	for i, want := range []int64{0, 6, 0, 6, 0} {
		f, from, err := d.openLog(10)
		require.NoError(t, err)
		assert.Equal(t, want, from, i)
		_, err = f.WriteString("12345\n")
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	old, err := os.ReadFile(d.join("log.1"))
	require.NoError(t, err)
	assert.Len(t, old, 12)
}

func TestOnlyTheNewProcessHasAnnounced(t *testing.T) {
	d := directory(t.TempDir())
	assert.Empty(t, d.announced(0), "there is no log yet")
	assert.Empty(t, d.lastWords(0))
	first := `{"@message":"serving","address":"127.0.0.1:1"}` + "\n"
	second := `{"@message":"isolation probed"}` + "\nnot json\n" + `{"@message":"serving","address":"127.0.0.1:2"}` + "\n" + `{"@message":"serv`
	require.NoError(t, os.WriteFile(d.log(), []byte(first+second), 0o600))
	assert.Equal(t, "127.0.0.1:1", d.announced(0))
	assert.Equal(t, "127.0.0.1:2", d.announced(int64(len(first))))
	assert.Empty(t, d.announced(int64(len(first+second))))
}

func TestLastWordsAreTheErrorOrThePlainEnd(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		`{"@message":"a","error":"first"}` + "\n" + `{"@message":"b","error":"second"}` + "\n" + `{"@message":"ended"}` + "\n": "second",
		`{"@message":"a"}` + "\n":                                  "",
		`{"@message":"a","error":"x"}` + "\npanic: y\n\nmain.go\n": "panic: y\n\nmain.go",
		"plain":                             "plain",
		strings.Repeat("é", maxWords):       strings.Repeat("é", maxWords/2),
		"x" + strings.Repeat("é", maxWords): "x" + strings.Repeat("é", maxWords/2-1),
	} {
		assert.Equal(t, want, words(text))
	}
}

func TestAStateIsWrittenWholeOrNotAtAll(t *testing.T) {
	d := directory(t.TempDir())
	_, err := d.load()
	require.ErrorIs(t, err, os.ErrNotExist)
	want := state{
		Spec: backend.Spec{ID: "a", Slots: 1, Env: map[string]string{"K": "V"}}, Started: time.Now().UTC().Round(0),
		Process: identity{1, 2, "3"}, Address: "x", LogFrom: 4, Crashes: 5, Stop: true, Ended: "why",
	}
	require.NoError(t, d.save(want))
	got, err := d.load()
	require.NoError(t, err)
	assert.Equal(t, want, got)
	st, err := os.Stat(d.join("state"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	left, err := filepath.Glob(d.join(".state-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
	require.Error(t, directory(d.join("none")).save(want))
	require.NoError(t, os.WriteFile(d.token(), []byte("\n"), 0o600))
	_, err = d.readToken()
	assert.ErrorContains(t, err, "empty")
}

func TestALockIsOnesAndOfWhatIsThere(t *testing.T) {
	d := directory(t.TempDir())
	_, err := d.lock(0)
	require.ErrorIs(t, err, os.ErrNotExist, "who does not begin it does not make it")
	first, err := d.lock(os.O_CREATE)
	require.NoError(t, err)
	_, err = d.lock(os.O_CREATE)
	require.ErrorIs(t, err, errLocked)
	require.NoError(t, os.Remove(d.join("lock")))
	require.ErrorIs(t, sameFile(first, d.join("lock")), os.ErrNotExist)
	second, err := d.lock(os.O_CREATE)
	require.NoError(t, err)
	require.ErrorIs(t, sameFile(first, d.join("lock")), os.ErrNotExist, "another file of that name")
	assert.NoError(t, first.Close())
	assert.NoError(t, second.Close())
}

func TestATreeIsRemovedThatItsOwnerHasClosed(t *testing.T) {
	root := filepath.Join(t.TempDir(), "data")
	closed := filepath.Join(root, "a", "b")
	require.NoError(t, os.MkdirAll(closed, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(closed, "file"), nil, 0))
	require.NoError(t, os.Chmod(closed, 0))
	require.NoError(t, os.Chmod(filepath.Dir(closed), 0o100))
	require.NoError(t, RemoveTree(root))
	assert.NoDirExists(t, root)
	assert.NoError(t, RemoveTree(root), "twice is once")
}

func TestArgumentsSayTheSpecAndTheEnvironmentIsSmall(t *testing.T) {
	t.Setenv("ORCHESTRATOR_SECRET", "x")
	t.Setenv("SANDBOXD_SLOTS", "x")
	t.Setenv("NOMAD_ALLOC_DIR", "/x")
	env := strings.Join(environ(map[string]string{"A": "1"}), "\n")
	assert.Contains(t, env, "SANDBOXD_ENV=A=1")
	assert.Contains(t, env, "PATH=")
	for _, foreign := range []string{"ORCHESTRATOR_", "SANDBOXD_SLOTS", "NOMAD_"} {
		assert.NotContains(t, env, foreign)
	}
	k := &keeping{container: &container{b: &Backend{config: Config{Dir: "/x", Grace: 5 * time.Second, Args: []string{"--more"}}}, dir: "/x/a", spec: backend.Spec{
		Slots: 3, Isolation: "uid", MaxTimeout: time.Minute, Limits: backend.Limits{MemoryBytes: 1 << 30, Pids: 7, CPUs: 0.5, DiskBytes: 9},
	}}}
	assert.Equal(t, "serve --listen 127.0.0.1:0 --slots 3 --data-dir /x/a/data --token-file /x/a/token --hide /x --drain-timeout 5s --log-json --network off "+
		"--isolation-require uid --max-timeout 1m0s --memory 1073741824 --pids 7 --cpus 0.5 --disk 9 --more", strings.Join(k.arguments(), " "))
	k.Wish, k.spec = "127.0.0.1:77", backend.Spec{Slots: 1, Network: true}
	assert.Equal(t, "serve --listen 127.0.0.1:77 --slots 1 --data-dir /x/a/data --token-file /x/a/token --hide /x --drain-timeout 5s --log-json --network on --more",
		strings.Join(k.arguments(), " "))
}

func TestTheBinaryIsFoundBesideUsOrInThePath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	_, err := findBinary("")
	require.ErrorContains(t, err, "find sandboxd")
	want := filepath.Join(dir, "sandboxd")
	require.NoError(t, os.WriteFile(want, nil, 0o700)) //nolint:gosec // a program
	got, err := findBinary("")
	require.NoError(t, err)
	assert.Equal(t, want, got)
	got, err = findBinary(want)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}
