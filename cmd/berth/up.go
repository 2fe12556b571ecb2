package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/orchestrator/client"
	"berth/slots"
)

// upping is what "berth up" is told.
type upping struct {
	listen     string
	containers int
	slots      int
	dataDir    string
	require    string
	noToken    bool
	logLevel   string
	patience   time.Duration
	more       []string
}

func (a *app) upCommand() *cobra.Command {
	var u upping
	cmd := &cobra.Command{
		Use: "up [flags] [-- FLAGS OF orchestrator serve]", Short: "Start a pool on this machine",
		Long: `Starts an orchestrator with containers on this machine, says how to use it, and
serves until Ctrl-C, which drains it: running calls end, then everything does.

It asks for a token, which the commands of this user find by themselves and
which no slot can read; --token-file names another one.`,
		Args: behindDash,
	}
	flags := cmd.Flags()
	flags.StringVar(&u.listen, "listen", strings.TrimPrefix(defaultURL, "http://"), "address to serve on")
	flags.IntVar(&u.containers, "containers", 2, "containers to run")
	flags.IntVar(&u.slots, "slots", 8, "slots of each container")
	flags.StringVar(&u.dataDir, "data-dir", "", "where everything of the containers is; without it "+a.stateDir())
	flags.StringVar(&u.require, "isolation-require", "landlock", "least isolation to accept, as sandboxd takes it")
	flags.BoolVar(&u.noToken, "no-token", false, "ask nobody for a token: whoever reaches the address, slots with a network among them, may use every slot")
	flags.StringVar(&u.logLevel, "log-level", "warn", "of the orchestrator, on the standard error: trace debug info warn error")
	flags.DurationVar(&u.patience, "ready-within", 2*time.Minute, "how long the slots may take to be there")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if u.containers < 1 || u.slots < 1 || u.patience <= 0 {
			return usagef("--containers, --slots and --ready-within must be above 0")
		}
		if u.noToken && a.tokenFile != "" {
			return usagef("--no-token and --token-file exclude each other")
		}
		u.dataDir, u.more = cmp.Or(u.dataDir, a.stateDir()), args
		return a.up(ctx, cmd, u)
	})
	return cmd
}

// stateDir is where "berth up" keeps the containers, unless it is told.
func (a *app) stateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/berth/up"
	}
	if home := a.getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "berth", "up")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("berth-up-%d", os.Geteuid()))
}

// up runs an orchestrator until ctx ends or it does.
func (a *app) up(ctx context.Context, cmd *cobra.Command, u upping) error {
	server, err := program("orchestrator")
	if err != nil {
		return err
	}
	agent, err := program("sandboxd")
	if err != nil {
		return err
	}
	if u.listen, err = freeAddress(ctx, u.listen); err != nil {
		return err
	}
	level, err := a.checkLevel(ctx, agent, u.require)
	if err != nil {
		return err
	}
	held, err := holdDirectory(u.dataDir)
	if err != nil {
		return err
	}
	defer held.Close()
	a.url = "http://" + u.listen
	args, forget, err := a.serverArgs(u, agent)
	if err != nil {
		return err
	}
	defer forget()
	child := exec.CommandContext(context.WithoutCancel(ctx), server, args...)
	child.Stdout, child.Stderr = a.err, a.err
	ended, err := begin(child)
	if err != nil {
		return fmt.Errorf("start orchestrator: %w", err)
	}
	drain := func() error {
		fmt.Fprintln(a.err, "berth: draining; running calls have their time to end")
		_ = child.Process.Signal(syscall.SIGTERM) // it has ended then, which is told below
		return <-ended
	}
	ready, cancel := context.WithTimeoutCause(ctx, u.patience, fmt.Errorf("not all slots are there after %v: the log says why, \"berth doctor\" may know more", u.patience))
	defer cancel()
	early, err := a.awaitSlots(ready, u.containers*u.slots, ended)
	if early || err != nil && ctx.Err() == nil {
		if !early {
			err = errors.Join(err, drain())
		}
		return err
	}
	if ctx.Err() == nil {
		if err := a.announce(ctx, cmd, u, level); err != nil {
			return errors.Join(err, drain())
		}
	}
	select {
	case err = <-ended:
		return fmt.Errorf("orchestrator ended by itself: %w", cmp.Or(err, errors.New("exit status 0")))
	case <-ctx.Done():
	}
	if err := drain(); err != nil {
		return &failure{exitFailed, fmt.Errorf("orchestrator did not drain in order: %w", err)}
	}
	return nil
}

// begin starts the child. ended gets its end, which the caller waits for.
func begin(child *exec.Cmd) (ended <-chan error, err error) {
	// Ctrl-C is for us alone: we tell it to drain, or our end does.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started, end := make(chan error, 1), make(chan error, 1)
	go func() {
		// The signal comes when the thread ends that has started the child, so
		// this one is kept until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := child.Start()
		started <- err
		if err == nil {
			end <- child.Wait()
		}
	}()
	return end, <-started
}

// holdDirectory makes us the only "berth up" on the directory until it is
// closed or our process ends: two would share the containers in it.
func holdDirectory(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil { //nolint:gosec // slots pass through it
		return nil, configf("make data directory: %w: name another one by --data-dir", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "up.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, configf("lock data directory: %w: name another one by --data-dir", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) //nolint:gosec // descriptors are small
	if err == nil {
		return f, nil
	}
	_ = f.Close() // it holds nothing
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, configf("data directory %s is in use by another \"berth up\": end that one, or name another directory by --data-dir", dir)
	}
	return nil, fmt.Errorf("lock data directory: %w", err)
}

// freeAddress checks that nobody serves at the address; port 0 becomes one
// that is free.
func freeAddress(ctx context.Context, address string) (string, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return "", configf("%w: choose another address by --listen, or end what serves there", err)
	}
	address = ln.Addr().String()
	if err := ln.Close(); err != nil {
		return "", fmt.Errorf("free address: %w", err)
	}
	return address, nil
}

// checkLevel says what isolation slots will have. A machine that gives less
// than is wanted is told before anything is started.
func (a *app) checkLevel(ctx context.Context, agent, require string) (string, error) {
	want, err := slots.ParseRequirement(require)
	if err != nil {
		return "", usagef("--isolation-require: %v", err)
	}
	p, err := probe(ctx, agent)
	if err != nil {
		return "", err
	}
	if p.Isolation.Level < want.Level {
		return "", configf("this machine gives isolation level %s, wanted is %s: \"berth doctor\" says what gives more, --isolation-require accepts less",
			p.Isolation.Level, want.Level)
	}
	return p.Isolation.Level.String(), nil
}

// serverArgs are the arguments of the orchestrator. forget removes what was
// made for them.
func (a *app) serverArgs(u upping, agent string) (args []string, forget func(), err error) {
	forget = func() {}
	args = []string{
		"serve", "--listen", u.listen, "--sandboxd", agent, "--data-dir", u.dataDir, "--log-level", u.logLevel,
		"--containers", strconv.Itoa(u.containers), "--slots", strconv.Itoa(u.slots), "--isolation-require", u.require,
	}
	token := a.tokenFile
	if token == "" && !u.noToken {
		if token, err = a.leaveToken(a.url, rand.Text()); err != nil {
			return nil, nil, err
		}
		mine := token
		forget = func() { _ = os.Remove(mine) } // a token of nobody is no harm
		args = append(args, "--sandboxd-arg", "--hide", "--sandboxd-arg", filepath.Dir(token))
	}
	if token != "" {
		args = append(args, "--token-file", token)
	}
	if !slices.ContainsFunc(u.more, func(arg string) bool { return strings.Contains(arg, "-config-") }) {
		key, err := sealingKey(filepath.Join(u.dataDir, "config"))
		if err != nil {
			return nil, nil, err
		}
		args = append(args, "--config-key-file", key)
	}
	return append(args, u.more...), forget, nil
}

// sealingKey is the file of the key that seals the variables of sandbox
// configs, which it makes when there is none.
func sealingKey(dir string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", configf("keep key: %w", err)
	}
	path = filepath.Join(dir, "key")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return path, nil
	}
	if err != nil {
		return "", configf("keep key: %w", err)
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	_, err = fmt.Fprintln(f, base64.StdEncoding.EncodeToString(key))
	if err = cmp.Or(err, f.Close()); err != nil {
		_ = os.Remove(path) // half a key is none
		return "", configf("keep key: %w", err)
	}
	return path, nil
}

// awaitSlots waits until so many slots are there. ended says that the
// orchestrator has ended before.
func (a *app) awaitSlots(ctx context.Context, n int, serving <-chan error) (ended bool, err error) {
	c, err := a.client()
	if err != nil {
		return false, err
	}
	defer c.Close()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		pools, err := c.Pools(ctx)
		if err == nil {
			there := 0
			for _, p := range pools {
				there += p.Available + p.Acquired
			}
			if there >= n {
				return false, nil
			}
		} else if !client.Unreachable(err) && ctx.Err() == nil {
			return false, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case err := <-serving:
			return true, &failure{exitConfig, fmt.Errorf("orchestrator ended before it was ready (%w): its log above says why", cmp.Or(err, errors.New("exit status 0")))}
		}
	}
}

// announce says what runs and how to use it.
func (a *app) announce(ctx context.Context, cmd *cobra.Command, u upping, level string) error {
	page := dashboard(ctx, a.url)
	token := a.tokenFile
	if token == "" && !u.noToken {
		token = a.tokenPath(a.url)
	}
	if a.asJSON(cmd, false) {
		return a.printJSON(map[string]any{
			"url": a.url, "dashboard": page, "token_file": token, "containers": u.containers, "slots": u.containers * u.slots, "isolation": level,
		})
	}
	fmt.Fprintf(a.out, "berth is up: %d slots in %d containers, isolation %s\n\n", u.containers*u.slots, u.containers, level)
	line := func(name, value string) { fmt.Fprintf(a.out, "  %-10s %s\n", name, value) }
	line("server", a.url)
	if page != "" {
		line("dashboard", page)
	}
	if token != "" {
		line("token", "in "+token)
	}
	berth := "berth"
	if a.url != defaultURL {
		berth = "berth --url " + a.url
	}
	line("try", berth+" exec -- uname -a")
	line("", berth+" shell")
	line("", berth+" slots")
	fmt.Fprintln(a.out, "\nCtrl-C drains and ends it.")
	return nil
}
