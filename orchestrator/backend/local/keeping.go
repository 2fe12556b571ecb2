package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"berth/orchestrator/backend"
	"berth/sandboxd/client"
)

// keeping is a container while we look after it.
type keeping struct {
	*container
	state
	token   string
	process *process  // nil: none runs
	since   time.Time // that the process has been up; zero: it is not
}

const (
	askTimeout  = 5 * time.Second      // for one question to a container
	startLook   = 5 * time.Millisecond // between two looks at a process that starts
	anyPort     = "127.0.0.1:0"
	cannotBegin = 64 // sandboxd's status for arguments that it does not understand
	notIsolated = 78 // and for isolation that it cannot give
)

// adoptProcess takes over the process of an orchestrator before us, if one runs.
func (k *keeping) adoptProcess() {
	p, err := open(k.Process, k.dir.dataDir())
	if err != nil && k.Process.PID == 0 {
		p, err = search(k.dir.dataDir())
	}
	if err != nil {
		return
	}
	k.process, k.Process = p, p.identity
	k.log.Info("container adopted", "pid", p.PID)
}

// run keeps a process running until the container is to end, or is given up.
func (k *keeping) run(ctx context.Context) {
	for k.heed(); ctx.Err() == nil; k.heed() {
		why, final := k.live(ctx)
		if ctx.Err() != nil {
			break
		}
		k.Crashes++
		if !k.isBegun() && k.isOurs() {
			k.undo(k.startError(why))
			return
		}
		if final || k.Crashes >= k.b.config.Backoff.Crashes {
			k.giveUp(why)
			return
		}
		pause := k.b.config.Backoff.pause(k.Crashes)
		k.log.Warn("container crashed and is started again", "error", why, "duration", pause.String(), "crashes", k.Crashes)
		if err := k.dir.save(k.state); err != nil {
			k.log.Error("cannot note the crash", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	k.conclude()
}

func (k *keeping) isOurs() bool {
	_, ours, _ := k.order()
	return ours
}

// live is the container's life from a start, or its adoption, to the end of
// its process, and returns why that ended. final means that another would end
// in the same way. When ctx ends, the process may still run.
func (k *keeping) live(ctx context.Context) (why string, final bool) {
	if k.process == nil {
		if err := k.launch(); err != nil {
			return err.Error(), false
		}
	}
	err := k.bringUp(ctx)
	if err != nil && ctx.Err() == nil && k.lostPort(ctx) {
		k.drop()
		k.Wish = ""
		if err := k.launch(); err != nil {
			return err.Error(), false
		}
		err = k.bringUp(ctx)
	}
	if err == nil {
		k.attend(ctx)
	}
	if ctx.Err() != nil {
		return "", false
	}
	if !k.process.ended() { // it never came up
		if err := k.process.kill(); err != nil {
			k.log.Error("cannot end container", "error", err)
		}
	}
	final = k.process.code == notIsolated || k.process.code == cannotBegin
	why = k.epitaph(err)
	k.drop()
	return why, final
}

// epitaph says how the process ended, with its last words.
func (k *keeping) epitaph(err error) string {
	why := k.process.status
	switch {
	case err != nil && !errors.Is(err, errGone):
		why = err.Error()
	case why == "":
		why = "ended"
	}
	if words := k.dir.lastWords(k.LogFrom); words != "" {
		why += ": " + words
	}
	return why
}

// drop forgets the process, which has ended.
func (k *keeping) drop() {
	k.process.close()
	k.process, k.since = nil, time.Time{}
	if k.Address != "" {
		k.Wish = k.Address
	}
	k.Process, k.Address = identity{}, ""
}

// launch starts a process. The state is written before and after, so that it
// is found whenever we are killed.
func (k *keeping) launch() error {
	log, from, err := k.dir.openLog(k.b.config.LogBytes)
	if err != nil {
		return err
	}
	defer log.Close()
	k.Process, k.Address, k.LogFrom = identity{}, "", from
	if err := k.dir.save(k.state); err != nil {
		return err
	}
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	defer nothing.Close()
	handle, err := os.StartProcess(k.b.config.Binary, append([]string{k.b.config.Binary}, k.arguments()...), &os.ProcAttr{
		Dir: string(k.dir), Env: environ(k.spec.Env), Files: []*os.File{nothing, log, log},
		// No key of our terminal reaches it, and it does not end with us.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	// It cannot be gone without a trace: its parent has not asked for its end.
	k.process = &process{handle: handle, code: -1}
	if k.Process, err = identify(handle.Pid); err == nil {
		k.process.identity = k.Process
		err = k.dir.save(k.state)
	}
	if err != nil {
		err = errors.Join(err, k.process.kill())
		k.drop()
		return err
	}
	return nil
}

// arguments are sandboxd's. Everybody may read them.
func (k *keeping) arguments() []string {
	listen := k.Wish
	if listen == "" {
		listen = anyPort
	}
	args := append([]string{
		"serve", "--listen", listen, "--slots", strconv.Itoa(k.spec.Slots),
		"--data-dir", k.dir.dataDir(), "--token-file", k.dir.token(), "--hide", k.b.config.Dir,
		"--drain-timeout", k.b.config.Grace.String(), "--log-json",
	}, specArguments(k.spec)...)
	return append(args, k.b.config.Args...)
}

// specArguments are those that say how slots are isolated and limited.
func specArguments(spec backend.Spec) []string {
	network := "off"
	if spec.Network {
		network = "on"
	}
	args := []string{"--network", network}
	add := func(flag, value string, set bool) {
		if set {
			args = append(args, flag, value)
		}
	}
	l := spec.Limits
	add("--isolation-require", spec.Isolation, spec.Isolation != "")
	add("--max-timeout", spec.MaxTimeout.String(), spec.MaxTimeout > 0)
	add("--memory", strconv.FormatInt(l.MemoryBytes, 10), l.MemoryBytes > 0)
	add("--pids", strconv.FormatInt(l.Pids, 10), l.Pids > 0)
	add("--cpus", strconv.FormatFloat(l.CPUs, 'f', -1, 64), l.CPUs > 0)
	add("--disk", strconv.FormatInt(l.DiskBytes, 10), l.DiskBytes > 0)
	return args
}

// bringUp waits until the process answers, and tells that it is up. errGone
// means that it has ended.
func (k *keeping) bringUp(ctx context.Context) error {
	late := time.NewTimer(k.b.config.StartTimeout)
	defer late.Stop()
	tick := time.NewTicker(startLook)
	defer tick.Stop()
	var err error
	for {
		if k.process.ended() {
			return errGone
		}
		if k.Address == "" {
			// What it has announced it has, and nobody else: the token may go there.
			k.Address = k.dir.announced(k.LogFrom)
		}
		if k.Address != "" {
			if err = k.b.answers(ctx, k.Address, k.token); err == nil {
				break
			}
		}
		select {
		case <-tick.C:
		case <-late.C:
			return errors.Join(fmt.Errorf("not ready after %s", k.b.config.StartTimeout), err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := k.dir.save(k.state); err != nil {
		return err
	}
	k.since = time.Now()
	k.up(&k.state, k.token)
	return nil
}

// answers asks whether the container is ready and knows the token.
func (b *Backend) answers(ctx context.Context, address, token string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("ask container: %w", err)
	}
	answer, err := b.http.Do(request)
	if err != nil {
		return fmt.Errorf("ask container: %w", err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("ask container: %s", answer.Status)
	}
	c, err := client.New(client.Config{URL: "http://" + address, Token: token, HTTPClient: b.http, Retries: -1})
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err = c.Leases(ctx); err != nil {
		return fmt.Errorf("ask container with its token: %w", err)
	}
	return nil
}

// lostPort reports whether the process ended for want of the port that it had
// before: then it may have another.
func (k *keeping) lostPort(ctx context.Context) bool {
	if k.Wish == "" || k.Address != "" || !k.process.ended() {
		return false
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", k.Wish)
	if err != nil {
		return true
	}
	// It was only asked for; whether it closes well decides nothing.
	_ = listener.Close()
	return false
}

// attend returns when the process has ended or ctx has.
func (k *keeping) attend(ctx context.Context) {
	tick := time.NewTicker(k.b.config.Look)
	defer tick.Stop()
	for !k.process.ended() {
		k.heed()
		if k.Crashes > 0 && time.Since(k.since) >= k.b.config.Backoff.Healthy {
			k.Crashes = 0
			if err := k.dir.save(k.state); err != nil {
				k.log.Error("cannot note that the container is well", "error", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// heed does what another orchestrator asks for.
func (k *keeping) heed() {
	if grace, asked := k.dir.askedStop(); asked {
		k.b.mu.Lock()
		k.tellLocked(errStopped, grace)
		k.b.mu.Unlock()
	}
}

// conclude does what the container's life was interrupted for.
func (k *keeping) conclude() {
	grace, ours, why := k.order()
	switch {
	case errors.Is(why, errStopped):
		k.stop(grace)
	case why != nil:
		k.undo(fmt.Errorf("start container %s: %w", k.spec.ID, why))
	case ours:
		k.undo(backend.Interrupted("start", k.spec.ID, errClosed))
	default:
		k.close()
	}
}

// stop ends the process and removes everything.
func (k *keeping) stop(grace time.Duration) {
	k.Stop = true // also for whoever comes next, if we are killed meanwhile
	err := k.dir.save(k.state)
	if k.process != nil {
		err = errors.Join(err, k.process.end(grace))
		k.process.close()
	}
	if err == nil {
		err = k.dir.remove()
	}
	if err != nil {
		k.broken(err)
		return
	}
	k.gone("stopped")
}

// undo removes a container that never was up. Its ID may be used again.
func (k *keeping) undo(why error) {
	if k.process != nil {
		if err := k.process.kill(); err != nil {
			why = errors.Join(why, err)
		}
		k.process.close()
	}
	if err := k.dir.remove(); err != nil {
		k.log.Error("cannot undo the start of a container", "error", err)
	}
	k.forget("")
	k.neverUp(why)
}

// giveUp ends a container that does not run. Its log stays, so that somebody
// can find out why, and so does the reason.
func (k *keeping) giveUp(why string) {
	k.log.Error("container given up", "error", why, "crashes", k.Crashes)
	k.Ended = why
	err := errors.Join(k.dir.save(k.state), RemoveTree(k.dir.dataDir()), os.Remove(k.dir.token()))
	if err != nil {
		k.log.Error("cannot tidy up after a container", "error", err)
	}
	k.b.trim()
	k.gone(why)
}

// close leaves the container to the next orchestrator: running, if we are to
// keep it so.
func (k *keeping) close() {
	k.forget("")
	k.neverUp(backend.Interrupted("start", k.spec.ID, errClosed))
	if k.process == nil {
		return
	}
	defer k.process.close()
	if k.b.config.Keep {
		return
	}
	if err := k.process.end(k.b.config.Grace); err != nil {
		k.log.Error("cannot end container", "error", err)
		return
	}
	if k.Address != "" {
		k.Wish = k.Address
	}
	k.Process, k.Address = identity{}, ""
	if err := k.dir.save(k.state); err != nil {
		k.log.Error("cannot note the end of a container", "error", err)
	}
}
