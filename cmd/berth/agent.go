package main

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

	"berth/cmd/berth/rollout"
)

const (
	readyTimeout = 30 * time.Second // until /health says ok
	stopTimeout  = 20 * time.Second // from SIGTERM to the end of the process
	logTail      = 4 << 10          // bytes of the agent's log that an error shows
)

// agent is a sandboxd that runs as our child, on a free port of the loopback
// and in a directory of its own.
type agent struct {
	url   string
	token string

	dir    string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended; err is valid then
	err    error
}

// startAgent starts the binary and waits until it is ready. Extra flags go to
// "sandboxd serve" after ours. The agent outlives ctx: only Close ends it, so
// that a cancelled rollout still stops it in order.
func startAgent(ctx context.Context, binary string, slots int, extra []string) (*agent, error) {
	dir, err := os.MkdirTemp("", "berth-demo-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	a := &agent{dir: dir, token: rand.Text(), exited: make(chan struct{})}
	if err := a.start(ctx, binary, slots, extra); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := a.waitReady(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *agent) start(ctx context.Context, binary string, slots int, extra []string) error {
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	a.url = "http://" + address
	// Slots may run under uids of their own and must get through to their
	// workspaces, but nobody else needs to list what lies here.
	if err := os.Chmod(a.dir, 0o711); err != nil { //nolint:gosec // see above
		return fmt.Errorf("open directory to slots: %w", err)
	}
	tokenFile := filepath.Join(a.dir, "token")
	if err := os.WriteFile(tokenFile, []byte(a.token), 0o600); err != nil {
		return fmt.Errorf("write token: %w", err)
	}
	log, err := os.OpenFile(a.log(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	a.cmd = exec.CommandContext(context.WithoutCancel(ctx), binary, append([]string{
		"serve", "--listen", address, "--slots", strconv.Itoa(slots),
		"--data-dir", filepath.Join(a.dir, "slots"), "--token-file", tokenFile,
	}, extra...)...)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	go func() {
		a.err = a.cmd.Wait()
		close(a.exited)
	}()
	return nil
}

// waitReady asks for the health until it is good.
func (a *agent) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not ready after %s", readyTimeout))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	client := rollout.Client{URL: a.url, Token: a.token, HTTP: http.DefaultClient}
	for {
		if _, err := client.Health(ctx); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-a.exited:
			return errors.New("start agent: it ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("start agent: %w", context.Cause(ctx))
		}
	}
}

// Close asks the agent to end, kills it when it does not, and removes its
// directory. An agent that ended in another way than with status 0 is an
// error, which shows the end of its log.
func (a *agent) Close() error {
	var errs []error
	// The error of a process that has ended already is told by its status below.
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.exited:
	case <-time.After(stopTimeout):
		errs = append(errs, fmt.Errorf("stop agent: still running %s after SIGTERM", stopTimeout))
		_ = a.cmd.Process.Kill()
		<-a.exited
	}
	if a.err != nil {
		errs = append(errs, fmt.Errorf("agent ended: %w\n%s", a.err, a.tail()))
	}
	if err := os.RemoveAll(a.dir); err != nil {
		errs = append(errs, fmt.Errorf("remove directory of agent: %w", err))
	}
	return errors.Join(errs...)
}

func (a *agent) log() string { return filepath.Join(a.dir, "log") }

// tail is the end of the agent's log.
func (a *agent) tail() []byte {
	text, err := os.ReadFile(a.log())
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
