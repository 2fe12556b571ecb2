package holder_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/holder"
)

// collected runs the script, and gives all that came of stdout and stderr and
// how much of it came before its end.
func collected(t *testing.T, h *holder.Holder, script string) (all [2]string, passed *holder.Passed) {
	t.Helper()
	take := func(p holder.Passed) {
		assert.Nil(t, passed, "once")
		passed = &p
	}
	p, err := h.Start(holder.Request{Argv: []string{"sh", "-c", script}, Files: []int{-1}, Output: take})
	require.NoError(t, err)
	exit, err := p.Wait(t.Context())
	require.NoError(t, err)
	for n, text := range exit.Output {
		all[n] = string(text)
	}
	if passed == nil {
		return all, nil
	}
	assert.Empty(t, all[0]+all[1], "what was passed does not come again")
	for n, text := range passed.Early {
		all[n] = string(text)
		if passed.Pipes[n] < 0 {
			continue
		}
		f := os.NewFile(uintptr(passed.Pipes[n]), "passed")
		defer f.Close()
		rest, err := io.ReadAll(f)
		require.NoError(t, err)
		all[n] += string(rest)
	}
	return all, passed
}

func TestShortOutputComesWithTheEnd(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	for script, want := range map[string][2]string{
		"true":                                  {},
		"printf a; printf b >&2; exit 3":        {"a", "b"},
		"printf a >/dev/stdout; exec 1>&- 2>&-": {"a", ""},
	} {
		all, passed := collected(t, h, script)
		assert.Equal(t, want, all, script)
		if passed != nil { // this machine may have been slow
			assert.Equal(t, [2]int{-1, -1}, passed.Pipes, script)
		}
	}
}

func TestOutputOfAProcessThatGoesOnIsPassed(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	all, passed := collected(t, h, "printf early; sleep 0.3; printf late; printf problem >&2")
	require.NotNil(t, passed)
	assert.Equal(t, "early", string(passed.Early[0]))
	assert.Equal(t, [2]string{"earlylate", "problem"}, all)
}

func TestLongOutputIsPassedAndWhole(t *testing.T) {
	requireLongOutput(t, spawn(t, startSpawner(t), plain(t)), 3_000_000)
}

func requireLongOutput(t *testing.T, h *holder.Holder, length int) {
	t.Helper()
	out := make(chan string, 1)
	p, err := h.Start(holder.Request{
		Argv: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; printf end >&2", length)}, Files: []int{-1},
		Output: func(p holder.Passed) {
			assert.Less(t, len(p.Early[0]), 40<<10, "no more is kept in the holder")
			go func() {
				f := os.NewFile(uintptr(p.Pipes[0]), "passed")
				defer f.Close()
				rest, _ := io.ReadAll(f)
				out <- string(p.Early[0]) + string(rest)
			}()
			_ = os.NewFile(uintptr(p.Pipes[1]), "passed").Close()
		},
	})
	require.NoError(t, err)
	_, err = p.Wait(t.Context())
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("x", length), <-out)
}

func TestOutputThatOthersHoldOpenIsPassedWithTheEnd(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	all, passed := collected(t, h, "(sleep 0.3; printf late) & printf early")
	require.NotNil(t, passed)
	assert.Equal(t, "earlylate", all[0])
	assert.Empty(t, all[1])
}

func TestProcessesWithCollectedOutputLeakNoDescriptor(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	count := func() int {
		all, _ := collected(t, h, "ls /proc/$PPID/fd 2>/dev/null | wc -l")
		var n int
		for _, c := range strings.TrimSpace(all[0]) {
			n = n*10 + int(c-'0')
		}
		return n
	}
	before := count()
	for range 50 {
		collected(t, h, "echo a; echo b >&2")
		p, err := h.Start(holder.Request{Argv: []string{"no-such-program"}, Files: []int{-1}, Output: func(holder.Passed) {}})
		require.NoError(t, err)
		_, err = p.Wait(t.Context())
		require.Error(t, err)
		p, err = h.Start(holder.Request{Argv: []string{"/etc/passwd"}, Files: []int{-1}, Output: func(holder.Passed) {}})
		require.NoError(t, err)
		_, err = p.Wait(t.Context())
		require.Error(t, err)
	}
	assert.Eventually(t, func() bool { return count() <= before }, 30*time.Second, 10*time.Millisecond)
}
