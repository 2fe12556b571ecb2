package holder

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hostile is a holder in the test's hand: a process that does nothing, and
// the socket that it would have.
type hostile struct {
	*Holder
	theirs  *blockingConn
	process *exec.Cmd
}

// newHostile has answer say what comes back for each request. It ends with
// the connection.
func newHostile(t testing.TB, answer func(c *blockingConn, f frame)) *hostile {
	t.Helper()
	agent, theirs, err := socketpair()
	require.NoError(t, err)
	fd, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	theirs.Close()
	process := exec.CommandContext(t.Context(), "sleep", "1000")
	require.NoError(t, process.Start())
	pidfd, err := unix.PidfdOpen(process.Process.Pid, 0)
	require.NoError(t, err)
	gone := make(chan struct{})
	go func() {
		process.Wait()
		close(gone)
	}()
	h := &hostile{newHolder(agent, process.Process.Pid, pidfd, gone), newBlockingConn(fd), process}
	go h.watch()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			f, err := h.theirs.receive()
			if err != nil {
				return
			}
			answer(h.theirs, f)
			closeAll(f.files)
		}
	}()
	t.Cleanup(func() {
		assert.NoError(t, h.Close(context.Background()))
		unix.Shutdown(h.theirs.fd, unix.SHUT_RDWR)
		<-ended
		h.theirs.Close()
		<-h.Done()
	})
	return h
}

// calls are everything that an agent asks of a holder.
var calls = map[string]func(ctx context.Context, h *Holder) error{
	"do": func(ctx context.Context, h *Holder) error {
		var reply map[string]any
		return h.Do(ctx, "read", struct{}{}, &reply, strings.NewReader("in"), &bytes.Buffer{})
	},
	"do with much input": func(ctx context.Context, h *Holder) error {
		return h.Do(ctx, "write", struct{}{}, nil, strings.NewReader(strings.Repeat("x", 1<<20)), nil)
	},
	"run": func(ctx context.Context, h *Holder) error {
		p, err := h.Start(Request{Argv: []string{"true"}, Files: []int{-1, 1, 2}})
		if err != nil {
			return err
		}
		_, err = p.Wait(ctx)
		return err
	},
	"run and collect": func(ctx context.Context, h *Holder) error {
		p, err := h.Start(Request{Argv: []string{"true"}, Files: []int{-1}, Output: func(p Passed) {
			closeAll(slices.DeleteFunc(p.Pipes[:], func(fd int) bool { return fd < 0 }))
		}})
		if err != nil {
			return err
		}
		_, err = p.Wait(ctx)
		return err
	},
	"sweep": func(ctx context.Context, h *Holder) error {
		killed, left, err := h.Sweep(ctx)
		if killed < 0 || left < 0 {
			return errors.New("believed a negative number")
		}
		return err
	},
	"open file": func(ctx context.Context, h *Holder) error {
		f, _, err := h.OpenFile(ctx, "name")
		if err == nil {
			f.Close()
		}
		return err
	},
	"open pipes": func(ctx context.Context, h *Holder) error {
		pipes, err := h.OpenPipes(ctx, "name")
		if err == nil {
			closeAll([]int{pipes[0].Read, pipes[0].Write, pipes[1].Read, pipes[1].Write})
		}
		return err
	},
	"drop pipes": func(ctx context.Context, h *Holder) error { return h.DropPipes(ctx, "name") },
}

func TestA13_ForgedMessagesEndInAnErrorAndLeakNothing(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	never, keep, err := os.Pipe() // nothing is ever written, and it is never closed
	require.NoError(t, err)
	defer never.Close()
	defer keep.Close()
	pipe := int(never.Fd())
	file, err := os.Create(filepath.Join(dir, "file"))
	require.NoError(t, err)
	defer file.Close()
	zero, err := os.Open("/dev/zero")
	require.NoError(t, err)
	defer zero.Close()
	raw := func(packet []byte, files ...int) func(*blockingConn, frame) {
		return func(c *blockingConn, _ frame) {
			var oob []byte
			if len(files) > 0 {
				oob = unix.UnixRights(files...)
			}
			unix.Sendmsg(c.fd, packet, oob, nil, unix.MSG_NOSIGNAL)
		}
	}
	reply := func(k kind, body string, files ...int) func(*blockingConn, frame) {
		return func(c *blockingConn, f frame) { c.send(k, f.id, []byte(body), files...) }
	}
	many := func(times int, one func(*blockingConn, frame)) func(*blockingConn, frame) {
		return func(c *blockingConn, f frame) {
			for range times {
				one(c, f)
			}
		}
	}
	for name, c := range map[string]struct {
		answer func(*blockingConn, frame)
		fatal  bool // the holder has broken the protocol and is killed
		fine   bool // some calls may be content with it
	}{
		"garbage":                 {answer: raw([]byte("garbage that is long enough")), fatal: true},
		"a short packet":          {answer: raw([]byte{9}), fatal: true},
		"an empty packet":         {answer: raw(nil), fatal: true},
		"a huge packet":           {answer: raw(make([]byte, 120<<10)), fatal: true},
		"a kind of ours":          {answer: reply(kindSpawn, "{}"), fine: true},
		"another's id":            {answer: func(c *blockingConn, f frame) { c.send(kindReply, f.id+1000, []byte("{}"), pipe) }},
		"id 0":                    {answer: func(c *blockingConn, _ frame) { c.send(kindReady, 0, nil, pipe, pipe) }},
		"no answer":               {answer: func(*blockingConn, frame) {}},
		"no JSON":                 {answer: reply(kindReply, "{{{", pipe)},
		"too many answers":        {answer: many(50, reply(kindReply, "{}", pipe, pipe)), fine: true},
		"an exit for all":         {answer: reply(kindExited, string(encode(exitReport{Status: 127, RunNS: -5, MaxRSS: -5})), pipe), fine: true},
		"a stream without end":    {answer: reply(kindStream, "", pipe)},
		"a stream of two":         {answer: reply(kindStream, "", pipe, pipe)},
		"a stream of none":        {answer: reply(kindStream, "")},
		"a stream from a file":    {answer: reply(kindStream, "", int(file.Fd()))},
		"a stream from a device":  {answer: reply(kindStream, "", int(zero.Fd()))},
		"streams for ever":        {answer: many(20, reply(kindStream, "", pipe))},
		"output: two pipes":       {answer: reply(kindOutput, `{"early":["YQ==",null],"open":[true,true]}`, pipe, pipe)},
		"output: more than said":  {answer: reply(kindOutput, `{"open":[false,true]}`, pipe, pipe, pipe)},
		"output: fewer":           {answer: reply(kindOutput, `{"open":[true,true]}`, pipe)},
		"output: a file":          {answer: reply(kindOutput, `{"open":[true,false]}`, int(file.Fd()))},
		"output: a device":        {answer: reply(kindOutput, `{"open":[true,true]}`, pipe, int(zero.Fd()))},
		"output: no JSON":         {answer: reply(kindOutput, `{"open":3}`, pipe)},
		"output: again and again": {answer: many(20, reply(kindOutput, `{"open":[true,false]}`, pipe))},
		"held: pipes for files":   {answer: reply(kindHeld, `{"paths":["a"]}`, pipe)},
		"held: a device":          {answer: reply(kindHeld, `{"paths":["a"]}`, int(zero.Fd()))},
		"held: files for pipes":   {answer: reply(kindHeld, `{"paths":["a","b"]}`, int(file.Fd()), int(file.Fd()), int(file.Fd()), int(file.Fd()))},
		"held: fewer than said":   {answer: reply(kindHeld, `{"paths":["a","b"]}`, pipe)},
		"held: an error and fds":  {answer: reply(kindHeld, `{"error":{"stage":"x","errno":-1}}`, pipe, pipe), fine: true},
		"an error of any kind":    {answer: reply(kindReply, `{"error":{"kind":"no such kind","message":"\u001b[31m"}}`, pipe), fine: true},
		"a body that is no memory": {answer: func(c *blockingConn, f frame) {
			unix.Sendmsg(c.fd, appendFrame(nil, kindReply, flagAttached, f.id, nil), unix.UnixRights(pipe), nil, unix.MSG_NOSIGNAL)
		}, fatal: true},
	} {
		t.Run(name, func(t *testing.T) {
			for what, call := range calls {
				before := descriptors(t)
				t.Run(what, func(t *testing.T) {
					h := newHostile(t, c.answer)
					ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
					defer cancel()
					began := time.Now()
					err := call(ctx, h.Holder)
					assert.Less(t, time.Since(began), 20*time.Second)
					if !c.fine && what != "drop pipes" && (what != "sweep" || err != nil) {
						require.Error(t, err)
					}
					// What nobody waited for any more is read by the next call.
					if c.fatal {
						assert.Eventually(t, func() bool {
							again, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
							defer cancel()
							call(again, h.Holder)
							return h.ended()
						}, 30*time.Second, 10*time.Millisecond, "a holder that breaks the protocol ends")
					}
				})
				for range 100 {
					if descriptors(t) <= before {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
				assert.LessOrEqual(t, descriptors(t), before, what)
			}
		})
	}
}

func TestA19_AForgedStatusIsNobodysEnd(t *testing.T) {
	wait := func(status uint32) (Exit, error) {
		lie := exitReport{Status: status, SpawnNS: -1, RunNS: -1, CPUNS: math.MinInt64, MaxRSS: -1, Alone: true}
		h := newHostile(t, func(c *blockingConn, f frame) { c.send(kindExited, f.id, encode(lie)) })
		p, err := h.Start(Request{Argv: []string{"true"}, Files: []int{-1, 1, 2}})
		require.NoError(t, err)
		return p.Wait(t.Context())
	}
	// Stopped, continued, signals that there are not.
	for _, status := range []uint32{0x7f, 0x137f, 0xffff, math.MaxUint32, 65, 126, 65 | 0x80} {
		_, err := wait(status)
		require.ErrorIs(t, err, errFrame, "%#x", status)
	}
	for _, status := range []uint32{0, 3 << 8, 255 << 8, 9, 64, 11 | 0x80} {
		exit, err := wait(status)
		require.NoError(t, err, "%#x", status)
		assert.Equal(t, Exit{Status: unix.WaitStatus(status), Alone: true}, exit, "no time and no memory is negative")
	}
}

func TestAHolderThatHangsUpIsKilled(t *testing.T) {
	h := newHostile(t, func(c *blockingConn, _ frame) { unix.Shutdown(c.fd, unix.SHUT_RDWR) })
	_, _, err := h.Sweep(t.Context())
	require.ErrorIs(t, err, ErrGone)
	select {
	case <-h.gone:
	case <-time.After(3 * time.Second):
		t.Fatal("it lives on with what it holds")
	}
}

func TestAHolderThatNeverReadsDoesNotBlockItsCallersForEver(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a deadline")
	}
	agent, theirs, err := socketpair()
	require.NoError(t, err)
	defer theirs.Close()
	process := exec.CommandContext(t.Context(), "sleep", "1000")
	require.NoError(t, process.Start())
	pidfd, err := unix.PidfdOpen(process.Process.Pid, 0)
	require.NoError(t, err)
	gone := make(chan struct{})
	go func() { process.Wait(); close(gone) }()
	h := newHolder(agent, process.Process.Pid, pidfd, gone)
	go h.watch()
	began := time.Now()
	for err == nil { // until the socket is full
		_, err = h.Start(Request{Argv: []string{strings.Repeat("x", 40<<10)}})
	}
	require.ErrorIs(t, err, ErrGone)
	assert.Less(t, time.Since(began), 2*sendDeadline)
	<-gone
	require.NoError(t, h.Close(t.Context()))
}

func TestAPassedPipeIsReadThroughAnOpeningOfOurOwn(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer write.Close()
	theirs, err := unix.Dup(int(read.Fd()))
	require.NoError(t, err)
	defer unix.Close(theirs)
	passed, err := unix.FcntlInt(read.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, read.Close())
	fd, err := ownReader(passed)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.SetNonblock(theirs, false))
	_, err = unix.Read(fd, make([]byte, 1))
	assert.Equal(t, unix.EAGAIN, err, "what the other side sets on its own does not reach ours")
}

func TestTheEndOfTheHolderIsAskedOfTheKernelToo(t *testing.T) {
	h := newHostile(t, func(*blockingConn, frame) {})
	said := make(chan struct{})
	close(said) // a spawner that has died closes it for all
	lying := newHolder(h.conn, h.pid, h.pidfd, said)
	assert.False(t, lying.ended())
	h.Kill()
	assert.Eventually(t, lying.ended, 30*time.Second, time.Millisecond)
}
