package timerslack_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/need"
	"berth/slots/timerslack"
)

// envServer has the test's own binary be a server whose watching thread rests.
const envServer = "BERTH_TEST_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(envServer) != "" {
		timerslack.RestWatcher()
		os.Exit(tell())
	}
	os.Exit(m.Run())
}

// tell prints the slack of each thread, that of the main one first.
func tell() int {
	threads, err := filepath.Glob("/proc/self/task/*")
	for _, thread := range threads {
		text, _ := os.ReadFile("/proc/" + filepath.Base(thread) + "/timerslack_ns")
		fmt.Print(string(text))
	}
	if err != nil || len(threads) == 0 {
		fmt.Println("no threads:", err)
		return 1
	}
	return 0
}

func TestTheWatchingThreadRests(t *testing.T) {
	// A thread's slack is told to others only where they may change it.
	_, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", os.Getppid()))
	need.Facility(t, "sys_nice", err)
	me, err := os.Executable()
	require.NoError(t, err)
	server := exec.CommandContext(t.Context(), me)
	server.Env = append(os.Environ(), envServer+"=1")
	out, err := server.CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	assert.Equal(t, "50000", lines[0], "the program's own thread sleeps as precisely as anywhere: %s", out)
	assert.Contains(t, lines[1:], "1000000", "the watching thread was made before the program ran")
}
