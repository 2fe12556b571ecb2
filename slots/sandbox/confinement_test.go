package sandbox_test

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

var confinementExamples = []example{
	{"A11 descriptors 0, 1 and 2 are all that a process inherits", inheritedFiles},
	{"a process has no capability, no new privileges and the filter", confinement},
	{"E01 namespaces and mounts are denied", deniedCalls},
	{"the network can be denied to one command", noNetwork},
	{"limits are set", limits},
	{"the holder cannot be read or traced by its slot", holderHidden},
}

func inheritedFiles(t *testing.T, x fixture) {
	// One that the agent itself does not know to close.
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	defer write.Close()
	assert.Equal(t, "0 1 2 3 ", output(t, x.s, "ls /proc/self/fd | tr '\\n' ' '"), "3 is ls reading the directory")
	assert.Equal(t, "0 1 2 3 \n", said(t, x, "ls /proc/self/fd | tr '\\n' ' '; echo"))
	c := script("ls /proc/self/fd | tr '\\n' ' '")
	c.Background = true
	out, _, _ := run(t, x.s, c)
	assert.Equal(t, "0 1 2 3 ", out)
}

func confinement(t *testing.T, x fixture) {
	if !x.h.Confined() {
		t.Skip("this level confines nothing")
	}
	status := output(t, x.s, "cat /proc/self/status; cat /proc/self/oom_score_adj")
	field := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + `:[ \t]*(.*)$`).FindStringSubmatch(status)
		require.NotNil(t, m, name)
		return strings.TrimSpace(m[1])
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		assert.Equal(t, "0000000000000000", field(set), set)
	}
	if os.Geteuid() == 0 {
		assert.Equal(t, "0000000000000000", field("CapBnd"))
		assert.Empty(t, field("Groups"))
	}
	assert.Equal(t, "1", field("NoNewPrivs"))
	assert.Equal(t, "2", field("Seccomp"))
	assert.True(t, strings.HasSuffix(status, "\n1000\n"), "the slot goes first when memory is short")
}

func deniedCalls(t *testing.T, x fixture) {
	if !x.h.Confined() {
		t.Skip("this level confines nothing")
	}
	for _, text := range []string{"unshare -U true", "unshare -m true", "unshare -n true", "mount -t tmpfs none .", "nsenter -t 1 -m true", "chroot / true"} {
		_, errs, exit := bash(t, x.s, text)
		assert.NotZero(t, exit.Code, text)
		assert.NotContains(t, errs, "command not found", text)
	}
}

func noNetwork(t *testing.T, x fixture) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	text := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%s && echo connected", port)
	out, _, _ := bash(t, x.s, text)
	assert.Equal(t, "connected\n", out)
	for _, background := range []bool{false, true} {
		c := script(text)
		c.NoNetwork, c.Background = true, background
		out, _, exit, err := try(x.s, c, 5*time.Second)
		if !x.h.Confined() {
			assert.Equal(t, slots.KindUnavailable, kindOf(t, err))
			continue
		}
		require.NoError(t, err)
		assert.NotZero(t, exit.Code)
		assert.Empty(t, out)
	}
}

func limits(t *testing.T, x fixture) {
	if !x.h.Confined() {
		t.Skip("this level confines nothing")
	}
	fields := strings.Fields(output(t, x.s, "ulimit -Hc; ulimit -Hn; ulimit -Hs; ulimit -Hl"))
	require.Len(t, fields, 4)
	for i, most := range []int{0, 4096, 8192, 64} {
		n, err := strconv.Atoi(fields[i])
		require.NoError(t, err)
		assert.LessOrEqual(t, n, most)
	}
	_, _, exit := bash(t, x.s, "ulimit -Hn 100000")
	assert.NotZero(t, exit.Code, "none can be raised")
}

func holderHidden(t *testing.T, x fixture) {
	if os.Geteuid() == 0 && !x.h.Confined() {
		t.Skip("this level leaves root its capabilities")
	}
	for _, file := range []string{"environ", "mem", "fd/3", "maps"} {
		_, errs, exit := bash(t, x.s, "head -c 1 /proc/$PPID/"+file)
		assert.NotZero(t, exit.Code, file)
		assert.NotContains(t, errs, "command not found")
	}
}
