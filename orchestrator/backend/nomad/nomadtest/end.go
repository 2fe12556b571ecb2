package nomadtest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
)

// ending is how long an agent has to end in order.
const ending = 20 * time.Second

// clearing is how long tasks have to end in order before their agent does.
const clearing = 5 * time.Second

// end stops the jobs, then the agent in order, which drains its node, and
// then whatever is left of it.
func (a *Agent) end() {
	a.mu.Lock()
	cmd, exited := a.cmd, a.exited
	a.mu.Unlock()
	if cmd != nil {
		a.clear(cmd.Process.Pid)
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-exited:
		case <-time.After(ending):
			a.t.Log("nomad does not end in order")
			_ = cmd.Process.Kill()
			<-exited
		}
	}
	if a.t.Failed() {
		a.tasks()
		log := a.Log()
		a.t.Logf("log of nomad:\n%s", log[max(0, len(log)-8<<10):])
	}
	for _, pid := range a.left() {
		a.t.Logf("process %d outlived its agent", pid)
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	a.unmount()
}

// tasks has the test say what its tasks have said last.
func (a *Agent) tasks() {
	logs, _ := filepath.Glob(filepath.Join(a.Dir, "nomad/alloc/*/alloc/logs/*.std*.[0-9]*")) // the pattern is good
	for _, path := range logs {
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			a.t.Logf("%s:\n%s", strings.TrimPrefix(path, a.Dir), text[max(0, len(text)-4<<10):])
		}
	}
}

// clear stops all jobs and waits a little for their tasks.
func (a *Agent) clear(agent int) {
	all, _, err := a.Client.Jobs().List(nil)
	if err != nil {
		return // it is down, or wants a token
	}
	for _, job := range all {
		_, _, _ = a.Client.Jobs().DeregisterOpts(job.ID, &api.DeregisterOptions{NoShutdownDelay: true}, nil) // the rest tells
	}
	for deadline := time.Now().Add(clearing); time.Now().Before(deadline); <-time.After(4 * look) {
		if left := a.left(); len(left) == 0 || len(left) == 1 && left[0] == agent {
			return
		}
	}
}

// left lists the processes that know the agent's directory: its executors,
// their tasks, and those that keep the tasks' logs, which have but files of it.
func (a *Agent) left() []int {
	var all []int
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if a.knows(dir) {
			all = append(all, pid)
		}
	}
	return all
}

// knows reports whether the process of the directory below /proc has to do with
// the agent's directory.
func (a *Agent) knows(process string) bool {
	for _, name := range []string{"cmdline", "environ"} {
		if text, err := os.ReadFile(filepath.Join(process, name)); err == nil && bytes.Contains(text, []byte(a.Dir+"/")) {
			return true
		}
	}
	open, _ := filepath.Glob(filepath.Join(process, "fd", "[0-9]*")) // the pattern is good
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, a.Dir+"/") {
			return true
		}
	}
	return false
}

// unmount takes away what is mounted below the agent's directory, so that it
// can be removed.
func (a *Agent) unmount() {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return // there is nothing to be seen
	}
	for _, line := range slices.Backward(strings.Split(string(text), "\n")) { // what is inside comes later
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], a.Dir+"/") {
			_ = exec.CommandContext(context.Background(), "umount", "-l", fields[1]).Run() // the rest tells
		}
	}
}
