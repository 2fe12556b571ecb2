package container

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"berth/orchestrator/backend/local"
)

const (
	readyTimeout = 30 * time.Second // until /readyz answers 200
	stopTimeout  = 20 * time.Second // from SIGTERM to the end of the process
	pollInterval = time.Millisecond // between two looks at /readyz
	logTail      = 4 << 10          // bytes of the log that an error shows
)

// Config says what to start.
type Config struct {
	Binary string   // the sandboxd to run
	Slots  int      // how many slots it serves
	Args   []string // more flags of "sandboxd serve", after ours
}

// Container is a running sandboxd. Close ends it.
type Container struct {
	URL   string // http://127.0.0.1:PORT
	Token string // bearer token
	PID   int
	// DataDir is its --data-dir, which Close removes.
	DataDir string
	// Startup is the time from the start of the process to the first answer
	// that said it was ready.
	Startup time.Duration

	dir    string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended; err is valid then
	err    error
	dumped bool // it ended by Dump
}

// Start starts the binary and waits until it is ready. The container outlives
// ctx: only Close ends it, so that work that was cancelled still stops it in
// order.
func Start(ctx context.Context, config Config) (*Container, error) {
	dir, err := os.MkdirTemp("", "berth-container-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	c := &Container{dir: dir, Token: rand.Text(), exited: make(chan struct{})}
	if err := c.start(ctx, config); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := c.waitReady(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Container) start(ctx context.Context, config Config) error {
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	c.URL = "http://" + address
	c.DataDir = filepath.Join(c.dir, "slots")
	// Slots may run under uids of their own and must get through to their
	// workspaces, but nobody else needs to list what lies here.
	if err := os.Chmod(c.dir, 0o711); err != nil { //nolint:gosec // see above
		return fmt.Errorf("open directory to slots: %w", err)
	}
	tokenFile := filepath.Join(c.dir, "token")
	if err := os.WriteFile(tokenFile, []byte(c.Token), 0o600); err != nil {
		return fmt.Errorf("write token: %w", err)
	}
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	c.cmd = exec.CommandContext(context.WithoutCancel(ctx), config.Binary, append([]string{
		"serve", "--listen", address, "--slots", strconv.Itoa(config.Slots),
		"--data-dir", c.DataDir, "--token-file", tokenFile,
	}, config.Args...)...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	// A key that interrupts us must not reach it as well: Close ends it.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	begun := time.Now()
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	c.PID, c.Startup = c.cmd.Process.Pid, time.Since(begun)
	go func() {
		c.err = c.cmd.Wait()
		close(c.exited)
	}()
	return nil
}

// waitReady asks until the container says that it is ready.
func (c *Container) waitReady(ctx context.Context) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not ready after %s", readyTimeout))
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if c.ready(ctx) {
			c.Startup += time.Since(begun)
			return nil
		}
		select {
		case <-tick.C:
		case <-c.exited:
			return errors.New("start container: it ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("start container: %w", context.Cause(ctx))
		}
	}
}

// ready asks once. Every failure to get an answer means not yet.
func (c *Container) ready(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/readyz", nil)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// Dump has the process crash: it says on its log what it is doing, and ends by
// that. What it started goes on. Close is still due.
func (c *Container) Dump() error {
	c.dumped = true
	_ = c.cmd.Process.Signal(syscall.SIGQUIT) // one that has ended is told below
	select {
	case <-c.exited:
	case <-time.After(stopTimeout):
		return fmt.Errorf("crash container: still running %s after SIGQUIT", stopTimeout)
	}
	text, err := os.ReadFile(c.log())
	if err == nil && !bytes.Contains(text, []byte("SIGQUIT: quit")) {
		err = errors.New("it did not say what it was doing")
	}
	if err != nil {
		return fmt.Errorf("crash container: %w", err)
	}
	return nil
}

// Close asks the container to end, kills it when it does not, and removes its
// directory. A container that ended in another way than with status 0 is an
// error, which shows the end of its log.
func (c *Container) Close() error {
	var errs []error
	// The error of a process that has ended already is told by its status below.
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(stopTimeout):
		errs = append(errs, fmt.Errorf("stop container: still running %s after SIGTERM", stopTimeout))
		_ = c.cmd.Process.Kill()
		<-c.exited
	}
	if c.err != nil && !c.dumped {
		errs = append(errs, fmt.Errorf("container ended: %w\n%s", c.err, c.tail()))
	}
	if err := local.RemoveTree(c.dir); err != nil {
		errs = append(errs, fmt.Errorf("remove directory of container: %w", err))
	}
	return errors.Join(errs...)
}

func (c *Container) log() string { return filepath.Join(c.dir, "log") }

// tail is the end of the log.
func (c *Container) tail() []byte {
	text, err := os.ReadFile(c.log())
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(text[max(0, len(text)-logTail):])
}

// freeAddress is a loopback address on which nobody listens right now.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}
