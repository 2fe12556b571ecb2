package holder

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pair is both ends of a connection: the agent's and a holder's.
func pair(t testing.TB) (agent *polledConn, holder *blockingConn) {
	t.Helper()
	agent, theirs, err := socketpair()
	require.NoError(t, err)
	fd, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	theirs.Close()
	holder = newBlockingConn(fd)
	t.Cleanup(func() { agent.Close(); holder.Close() })
	return agent, holder
}

func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestFramesArriveAsTheyWereSent(t *testing.T) {
	agent, holder := pair(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	defer write.Close()
	for _, size := range []int{0, 1, maxInline - 1, maxInline, maxInline + 1, 1 << 20, 10 << 20} {
		for _, files := range [][]int{nil, {int(read.Fd())}, {int(read.Fd()), int(write.Fd()), int(read.Fd())}} {
			for name, ends := range map[string][2]conn{"to the holder": {agent, holder}, "to the agent": {holder, agent}} {
				before := descriptors(t)
				body := bytes.Repeat([]byte{0xa5}, size)
				sent := make(chan error, 1)
				go func() { sent <- ends[0].send(kindOp, 1<<63|7, body, files...) }()
				f, err := ends[1].receive()
				require.NoError(t, err, "%s, %d bytes", name, size)
				require.NoError(t, <-sent)
				assert.Equal(t, kindOp, f.kind)
				assert.Equal(t, uint64(1<<63|7), f.id)
				assert.True(t, bytes.Equal(body, f.body))
				assert.Len(t, f.files, len(files))
				for _, fd := range f.files {
					flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
					require.NoError(t, err)
					assert.NotZero(t, flags&unix.FD_CLOEXEC, "nothing of it reaches a process by accident")
				}
				closeAll(f.files)
				assert.Equal(t, before, descriptors(t))
			}
		}
	}
}

func TestAClosedConnectionIsAnEnd(t *testing.T) {
	agent, holder := pair(t)
	require.NoError(t, agent.Close())
	_, err := holder.receive()
	require.ErrorIs(t, err, io.EOF)
	require.NotErrorIs(t, err, errFrame)
	assert.Error(t, holder.send(kindReply, 1, nil), "and no signal")
}

func TestParseFrameRefusesWhatIsNone(t *testing.T) {
	good := appendFrame(nil, kindReply, 0, 5, []byte("body"))
	f, attached, err := parseFrame(good)
	require.NoError(t, err)
	assert.False(t, attached)
	assert.Equal(t, frame{kind: kindReply, id: 5, body: []byte("body")}, f)
	for name, packet := range map[string][]byte{
		"nothing":             {},
		"half a header":       good[:headerSize-1],
		"kind 0":              appendFrame(nil, 0, 0, 1, nil),
		"a kind too high":     appendFrame(nil, kindLast, 0, 1, nil),
		"an unknown flag":     appendFrame(nil, kindReply, 4, 1, nil),
		"inline and attached": appendFrame(nil, kindReply, flagAttached, 1, []byte("x")),
		"attached in pieces":  appendFrame(nil, kindReply, flagAttached|flagMore, 1, nil),
	} {
		_, _, err := parseFrame(packet)
		assert.ErrorIs(t, err, errFrame, name)
	}
}

// rawSend sends any bytes with any descriptors.
func rawSend(t testing.TB, c *blockingConn, packet []byte, files ...int) {
	t.Helper()
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	require.NoError(t, unix.Sendmsg(c.fd, packet, oob, nil, unix.MSG_NOSIGNAL))
}

func memory(t testing.TB, size int64, seal bool) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, size))
	if seal {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
		require.NoError(t, err)
	}
	return fd
}

func TestMalformedPacketsAreRefusedAndLeakNothing(t *testing.T) {
	agent, holder := pair(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	defer write.Close()
	pipe := int(read.Fd())
	opened := func(path string) int {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	attached := appendFrame(nil, kindReply, flagAttached, 1, nil)
	many := make([]int, maxFiles+5)
	for i := range many {
		many[i] = pipe
	}
	for _, c := range []struct {
		name   string
		packet []byte
		files  []int
	}{
		{"too short, with files", []byte{1, 2}, []int{pipe, pipe}},
		{"no bytes, with a file", nil, []int{pipe}},
		{"too long", make([]byte, headerSize+maxInline+1), nil},
		{"much too long", append(appendFrame(nil, kindReply, 0, 1, nil), make([]byte, 150<<10)...), []int{pipe}},
		{"too many files", appendFrame(nil, kindReply, 0, 1, nil), many},
		{"no attached body", attached, nil},
		{"a pipe as body", attached, []int{pipe}},
		{"a fifo as body", attached, []int{opened(fifo)}},
		{"a directory as body", attached, []int{opened("/")}},
		{"a device as body", attached, []int{opened("/dev/zero")}},
		{"a socket as body", attached, []int{holder.fd}},
		{"a file of /proc as body", attached, []int{opened("/proc/self/status")}},
		{"an endless body", attached, []int{memory(t, 1<<40, false)}},
		{"a body above the bound", attached, []int{memory(t, maxBody+1, true)}},
		{"kind 0", appendFrame(nil, 0, 0, 1, nil), []int{pipe}},
	} {
		before := descriptors(t)
		rawSend(t, holder, c.packet, c.files...)
		_, err := agent.receive()
		require.ErrorIs(t, err, errFrame, c.name)
		assert.Equal(t, before, descriptors(t), c.name)
	}
}

func TestDecodeRefusesWhatIsNoJSON(t *testing.T) {
	for _, body := range []string{"", "{", "[]", `{"killed":1.5}`, `{"killed":1e99}`, `"x"`, string(bytes.Repeat([]byte("["), 100_000))} {
		_, err := decode[sweepReport]([]byte(body))
		assert.ErrorIs(t, err, errFrame, "%.20q", body)
	}
}

func TestPackedMessagesArriveWholeOrNotAtAll(t *testing.T) {
	arrives(t, spawnRequest{})
	arrives(t, spawnRequest{
		Argv: []string{"bash", "", strings.Repeat("x", 300)}, Env: []string{"A=\xff\n"}, Cwd: "/é", NoStdin: true, Script: true,
		Confine: []string{"no-network"}, Keep: true, Collect: true,
	})
	arrives(t, exitReport{})
	arrives(t, exitReport{
		Status: math.MaxUint32, SpawnNS: math.MinInt64, RunNS: math.MaxInt64, CPUNS: -1, MaxRSS: 1 << 40, Alone: true,
		Output: [2][]byte{[]byte("out\x00"), bytes.Repeat([]byte{0xff}, 300)},
	})
	for _, body := range [][]byte{
		bytes.Repeat([]byte{0xff}, 20),
		append([]byte{0}, binary.AppendUvarint(nil, 1<<62)...), // a list longer than the message
		append([]byte{0, 1}, binary.AppendUvarint(nil, math.MaxUint64)...),
		append([]byte{0}, bytes.Repeat([]byte{0xff}, 11)...), // a number without end
	} {
		_, err := decode[spawnRequest](body)
		require.ErrorIs(t, err, errFrame, "%x", body)
		_, err = decode[exitReport](body)
		require.ErrorIs(t, err, errFrame, "%x", body)
	}
}

func arrives[T packed](t *testing.T, sent T) {
	t.Helper()
	body := encode(sent)
	got, err := decode[T](body)
	require.NoError(t, err)
	require.Equal(t, sent, got)
	for n := range body {
		_, err := decode[T](body[:n])
		require.ErrorIs(t, err, errFrame, "the first %d bytes", n)
	}
	_, err = decode[T](append(body, 0))
	require.ErrorIs(t, err, errFrame, "a byte more")
}

// FuzzFrame reads any packet as both sides would.
func FuzzFrame(f *testing.F) {
	f.Add(appendFrame(nil, kindSpawn, 0, 1, encode(spawnRequest{Argv: []string{"true"}, Env: []string{"A=1"}, Cwd: "/"})))
	f.Add(appendFrame(nil, kindExited, 0, 1<<40, encode(exitReport{Status: 9, RunNS: -1, MaxRSS: 1 << 62})))
	f.Add(appendFrame(nil, kindReply, flagAttached, 0, nil))
	f.Add(appendFrame(nil, kindReply, 0, 3, []byte(`{"error":{"kind":"x","message":"y"},"output":"AA=="}`)))
	f.Add(appendFrame(nil, kindHeld, 0, 3, []byte(`{"paths":["a"],"error":{"stage":"s","errno":-5}}`)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, packet []byte) {
		got, attached, err := parseFrame(packet)
		if err != nil {
			assert.ErrorIs(t, err, errFrame)
			return
		}
		flags := byte(0)
		if attached {
			flags = flagAttached
		}
		if got.more {
			flags |= flagMore
		}
		assert.Equal(t, packet, appendFrame(nil, got.kind, flags, got.id, got.body), "encoding is one to one")
		for _, read := range []func([]byte) error{
			reading[Plan], reading[order], reading[spawnRequest], reading[exitReport], reading[failure],
			reading[sweepRequest], reading[sweepReport], reading[opRequest], reading[opReply], reading[held], reading[holdRequest],
		} {
			if err := read(got.body); err != nil {
				assert.ErrorIs(t, err, errFrame)
			}
		}
		require.Error(t, refusal(got.body))
		if reply, err := decode[opReply](got.body); err == nil && reply.Error != nil {
			assert.Error(t, reply.Error.Typed())
		}
	})
}

func reading[T any](body []byte) error {
	v, err := decode[T](body)
	if err == nil {
		_, err = json.Marshal(v)
	}
	return err
}

func TestABodyInPiecesIsPutTogether(t *testing.T) {
	agent, c := pair(t)
	body := bytes.Repeat([]byte("0123456789"), 30_000)
	go func() {
		assert.NoError(t, c.sendPieces(kindReply, 7, body))
		assert.NoError(t, c.sendPieces(kindReply, 8, nil))
		// Other frames come in between.
		assert.NoError(t, c.sendPacket(appendFrame(nil, kindReply, flagMore, 9, []byte("a")), nil))
		assert.NoError(t, c.send(kindExited, 7, []byte("between")))
		assert.NoError(t, c.sendPacket(appendFrame(nil, kindReply, 0, 9, []byte("b")), nil))
		// But no other pieces.
		assert.NoError(t, c.sendPacket(appendFrame(nil, kindReply, flagMore, 10, []byte("a")), nil))
		assert.NoError(t, c.sendPacket(appendFrame(nil, kindReply, flagMore, 11, []byte("a")), nil))
	}()
	for _, want := range []frame{
		{kind: kindReply, id: 7, body: body},
		{kind: kindReply, id: 8, body: []byte{}},
		{kind: kindExited, id: 7, body: []byte("between")},
		{kind: kindReply, id: 9, body: []byte("ab")},
	} {
		f, err := agent.receive()
		require.NoError(t, err)
		assert.Equal(t, want.kind, f.kind)
		assert.Equal(t, want.id, f.id)
		assert.True(t, bytes.Equal(want.body, f.body), "%d bytes", len(f.body))
	}
	_, err := agent.receive()
	require.ErrorIs(t, err, errFrame)
}
