package environment_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/environment"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox"
)

// slow is an sdist whose build waits until the file that it returns is there.
func (p *place) slow(t testing.TB, name string) (release func()) {
	t.Helper()
	gate := filepath.Join(p.packages, name+".go")
	p.sdist(t, name, "1.0", `
import os, time
def hostile_build():
    while not os.path.exists("`+gate+`"): time.sleep(0.02)
`)
	return func() { require.NoError(t, os.WriteFile(gate, nil, 0o644)) }
}

// start asks for an environment beside the test.
func (p *place) start(ctx context.Context, s api.EnvironmentSpec) (<-chan api.EnvironmentResult, <-chan error) {
	results, errs := make(chan api.EnvironmentResult, 1), make(chan error, 1)
	go func() { // ends with its build or its context
		r, err := p.store.Ensure(ctx, s, false, nil)
		results <- r
		errs <- err
	}()
	return results, errs
}

func (p *place) awaitBuilding(t testing.TB, key string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, e := range p.store.List().Environments {
			if e.Key == key && e.State == api.EnvironmentBuilding {
				return true
			}
		}
		return false
	}, 30*time.Second, 5*time.Millisecond)
}

func TestWhoAsksForTheSameWaitsForTheSameBuild(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	release := p.slow(t, "slow")
	spec := p.python("slow")
	gone, leave := context.WithCancelCause(t.Context())
	_, left := p.start(gone, spec)
	p.awaitBuilding(t, keyOf(t, spec))
	var asking sync.WaitGroup
	for range 5 {
		asking.Go(func() {
			r, err := p.store.Ensure(t.Context(), spec, false, nil)
			assert.True(t, err == nil && r.Environment != nil && !r.Cached, "%v %+v", err, r)
		})
	}
	leave(errors.New("left"))
	require.EqualError(t, <-left, "left", "who leaves is not kept")
	release()
	asking.Wait()
	assert.Equal(t, []string{"python ok"}, p.seen.built())
	p.nothingLeft(t)
}

func TestABuildGoesOnWhenEverybodyHasLeft(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	release := p.slow(t, "slow")
	spec := p.python("slow")
	ctx, leave := context.WithCancel(t.Context())
	_, left := p.start(ctx, spec)
	p.awaitBuilding(t, keyOf(t, spec))
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	release()
	require.Eventually(t, func() bool { return len(p.seen.built()) == 1 }, patience, 20*time.Millisecond)
	assert.True(t, p.ensure(t, spec).Cached)
}

func TestAnEnvironmentOutlivesTheAgentAndAnUnfinishedOneDoesNot(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.wheel(t, "small", "1.0", "value = 1\n")
	spec := p.python("small")
	e := p.ensure(t, spec).Environment
	require.NoError(t, p.store.Close())
	_, err := p.store.Ensure(t.Context(), p.python("other"), false, nil)
	assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind)

	site := filepath.Join(p.data, "sandboxes", "environments")
	half := filepath.Join(site, strings.Repeat("a", 64)+".half")
	require.NoError(t, os.Mkdir(half, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(half, "file"), nil, 0o400))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(site, strings.Repeat("b", 64))))
	require.NoError(t, os.WriteFile(filepath.Join(p.config.StateDir, "x.json.next"), nil, 0o600))
	p.open(t)
	again := p.ensure(t, spec)
	assert.True(t, again.Cached)
	assert.Equal(t, e.SizeBytes, again.Environment.SizeBytes)
	assert.WithinDuration(t, e.Built, again.Environment.Built, 0)
	p.nothingLeft(t)
	trees, links, err := p.host.Environments().List()
	require.NoError(t, err)
	assert.Len(t, trees, 1)
	assert.Len(t, links, 1)

	// Another interpreter in its place, as a new image brings it, cannot
	// import from the tree.
	require.NoError(t, p.store.Close())
	records, err := filepath.Glob(filepath.Join(p.config.StateDir, "*.json"))
	require.NoError(t, err)
	require.Len(t, records, 1)
	text, err := os.ReadFile(records[0])
	require.NoError(t, err)
	changed := strings.Replace(string(text), `"size":`, `"size":1`, 1)
	require.NoError(t, os.WriteFile(records[0], []byte(changed), 0o600))
	p.open(t)
	assert.Empty(t, p.store.List().Environments)
	p.nothingLeft(t)
}

func TestClosingEndsABuildAndSaysSo(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.slow(t, "slow")
	spec := p.python("slow")
	_, ended := p.start(t.Context(), spec)
	p.awaitBuilding(t, keyOf(t, spec))
	require.NoError(t, p.store.Close())
	err := <-ended
	assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind)
	p.nothingLeft(t)
}

func TestDeletingEndsABuildAndSparesWhatIsInUse(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.slow(t, "slow")
	spec := p.python("slow")
	results, _ := p.start(t.Context(), spec)
	p.awaitBuilding(t, keyOf(t, spec))
	require.NoError(t, p.store.Delete(keyOf(t, spec)))
	r := <-results
	require.NotNil(t, r.Failure)
	assert.Equal(t, api.InstallCancelled, r.Failure.Reason)
	p.nothingLeft(t)

	p.wheel(t, "small", "1.0", "value = 1\n")
	key := p.ensure(t, p.python("small")).Environment.Key
	_, done, err := p.store.Use(key)
	require.NoError(t, err)
	assert.Equal(t, slots.KindConflict, slots.AsError(p.store.Delete(key)).Kind)
	assert.Equal(t, 1, p.store.List().Environments[0].InUse)
	done()
	require.NoError(t, p.store.Delete(key))
	assert.Equal(t, slots.KindNotFound, slots.AsError(p.store.Delete(key)).Kind)
	_, _, err = p.store.Use(key)
	assert.Equal(t, slots.KindNotFound, slots.AsError(err).Kind)
	p.nothingLeft(t)
	path, done, err := p.store.Use("")
	require.NoError(t, err, "the plain interpreter is always there")
	assert.Empty(t, path)
	done()
}

func TestOneThatIsMadeAnewLeavesTheOldToItsUsers(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, nil)
	p.wheel(t, "small", "1.0", "value = 'old'\n")
	spec := p.python("small")
	e := p.ensure(t, spec).Environment
	old, done, err := p.store.Use(e.Key)
	require.NoError(t, err)
	p.wheel(t, "small", "1.0", "value = 'new'\n")
	r, err := p.store.Ensure(t.Context(), spec, true, nil)
	require.NoError(t, err)
	require.Nil(t, r.Failure)
	assert.False(t, r.Cached)
	say := func(tree string) string {
		out, _ := p.inSlot(t, tree+"/bin/python3", "-c", "import small; print(small.value)")
		return out
	}
	assert.Equal(t, "old\n", say(old), "who uses it keeps it")
	assert.Equal(t, "new\n", say(e.Path))
	done()
	p.nothingLeft(t)
	_, code := p.inSlot(t, "ls", old)
	assert.NotEqual(t, 0, code)

	require.NoError(t, os.Remove(filepath.Join(p.packages, "small-1.0-py3-none-any.whl")))
	r, err = p.store.Ensure(t.Context(), spec, true, nil)
	require.NoError(t, err)
	require.NotNil(t, r.Failure, "what cannot be made anew")
	assert.Equal(t, "new\n", say(e.Path), "leaves the one that is there")
}

func TestThoseLongestUnusedMakeRoom(t *testing.T) {
	need.Program(t, "pip")
	t.Parallel()
	p := newPlace(t, strongest, func(c *environment.Config) { c.Grace = time.Nanosecond })
	for _, name := range []string{"one", "two", "three", "four"} {
		p.wheel(t, name, "1.0", "value = '''"+strings.Repeat("x", 200<<10)+"'''\n")
	}
	one := p.ensure(t, p.python("one")).Environment
	two := p.ensure(t, p.python("two")).Environment
	require.NoError(t, p.store.Close())
	p.config.MaxBytes = one.SizeBytes * 5 / 2 // room for two
	p.open(t)
	p.ensure(t, p.python("two"))
	p.ensure(t, p.python("one"))
	three := p.ensure(t, p.python("three")).Environment
	has := func() (keys []string) {
		for _, e := range p.store.List().Environments {
			keys = append(keys, e.Key)
		}
		return keys
	}
	require.Eventually(t, func() bool { return p.seen.evictions() == 1 }, 30*time.Second, 5*time.Millisecond)
	assert.ElementsMatch(t, []string{one.Key, three.Key}, has(), "the one whose last use is the oldest went")
	assert.NotContains(t, has(), two.Key)

	_, done, err := p.store.Use(one.Key)
	require.NoError(t, err)
	defer done()
	_, done, err = p.store.Use(three.Key)
	require.NoError(t, err)
	defer done()
	p.ensure(t, p.python("four"))
	assert.Len(t, has(), 3, "none goes that is in use, and none that was asked for just now")
	p.nothingLeft(t)
}

func (o *observed) evictions() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.evicted
}

func TestAFullDiskOfTheAgentsOwnIsAFailureToInstall(t *testing.T) {
	for _, errno := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		f := environment.FailureOf(&os.PathError{Op: "mkdir", Path: "x", Err: errno})
		require.NotNil(t, f)
		assert.Equal(t, api.InstallDiskFull, f.Reason)
	}
	assert.Nil(t, environment.FailureOf(sandbox.ErrOutputLimited))
}

func BenchmarkFindingAnEnvironment(b *testing.B) {
	need.Program(b, "pip")
	p := newPlace(b, strongest, nil)
	p.wheel(b, "small", "1.0", "value = 1\n")
	spec := p.python("small")
	key := p.ensure(b, spec).Environment.Key
	b.Run("ensure", func(b *testing.B) {
		for b.Loop() {
			if _, err := p.store.Ensure(b.Context(), spec, false, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("use", func(b *testing.B) {
		for b.Loop() {
			_, done, err := p.store.Use(key)
			if err != nil {
				b.Fatal(err)
			}
			done()
		}
	})
}
