package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"berth/slots"
	"berth/slots/holder"
	"berth/slots/probe"
)

// choose tries the ladder until a mechanism holds, and judges it by a short
// list of attacks from one throw-away slot on another.
func (h *Host) choose(ctx context.Context) error {
	var tried error
	mechanisms := ladder(h.facts, h.config.Attempt)
	if h.config.PrivateRoot {
		mechanisms = withPrivateRoot(mechanisms)
	}
	for _, m := range mechanisms {
		axes, weak, err := h.try(ctx, m)
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("probe isolation: %w", context.Cause(ctx))
			}
			h.attempts = append(h.attempts, refused(m, err))
			tried = errors.Join(tried, fmt.Errorf("%s: %w", m.name, err))
			continue
		}
		h.how = m
		h.isolated = slots.NewIsolation(axes)
		h.isolated.Weak = weak
		h.attempts = append(h.attempts, Attempt{Mechanism: m.name, Level: h.isolated.Level})
		return nil
	}
	if h.config.PrivateRoot {
		return &UnmetError{
			Required: h.config.Require, Got: slots.NewIsolation(nil), Attempts: h.attempts,
			Shortfall: []slots.Shortfall{{Axis: "root", Wanted: "private", Got: "shared"}},
		}
	}
	return fmt.Errorf("probe isolation: nothing works: %w", tried)
}

// try makes two instances with the mechanism and has one attack the other.
func (h *Host) try(ctx context.Context, m mechanism) (slots.Axes, []string, error) {
	var attacker, victim *instance
	var attackerErr, victimErr error
	var both sync.WaitGroup
	both.Go(func() { attacker, attackerErr = h.newInstance(ctx, m) })
	both.Go(func() { victim, victimErr = h.newInstance(ctx, m) })
	both.Wait()
	for _, i := range []*instance{attacker, victim} {
		if i != nil {
			defer h.discardProbe(i)
		}
	}
	if err := cmp.Or(attackerErr, victimErr); err != nil {
		return nil, nil, err
	}
	if err := attacker.works(ctx); err != nil {
		return nil, nil, err
	}
	targets, done, err := h.targets(victim)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	results, err := attacker.attack(ctx, targets)
	if err != nil {
		return nil, nil, err
	}
	h.attacks = results
	axes, weak := probe.Judge(m.axes(h), results, m.namespaces)
	if m.files && !m.ids {
		weak = append(weak, "slots share a uid: modes, attributes and path sockets of a neighbour's files, and of the agent's, are not held apart")
	}
	return axes, weak, nil
}

// discardProbe ends a throw-away instance behind the start's back.
func (h *Host) discardProbe(i *instance) {
	h.disposal.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), closeDeadline)
		defer cancel()
		if i.dispose(ctx) == nil {
			h.emptyTrash(ctx)
		}
	})
}

// works has the holder look at the workspace: one that no longer answers, or a
// workspace that its slot cannot reach, fails here and not under a client.
func (i *instance) works(ctx context.Context) error {
	if err := i.holder.Do(ctx, "stat", map[string]string{"path": "."}, nil, nil, nil); err != nil {
		return &holder.StageError{Stage: "workspace", Text: err.Error()}
	}
	return nil
}

// targets prepares what the attacker is to reach for: a file and a socket of
// the victim, a file of the agent's.
func (h *Host) targets(victim *instance) (t probe.Targets, done func(), err error) {
	secret := rand.Text()
	t = probe.Targets{
		NeighbourFile: victim.dir("workspace", "secret"), NeighbourPID: victim.holder.PID(),
		AgentPID: os.Getpid(), AgentFile: h.layout.path("secret"), Abstract: "berth-" + secret[:12], Secret: secret,
		OwnPIDs: victim.how.namespaces, OwnProc: victim.how.namespaces && victim.how.proc != "rbind", OwnIPC: victim.how.namespaces,
	}
	for _, path := range h.config.Secrets {
		if s, err := probe.FileAt(resolved(path)); err == nil {
			t.AgentSecrets = append(t.AgentSecrets, s)
		}
	}
	if h.config.AgentPort != 0 {
		t.AgentAddress = net.JoinHostPort("127.0.0.1", strconv.Itoa(h.config.AgentPort))
	}
	if err := os.WriteFile(t.AgentFile, []byte(secret), 0o600); err != nil {
		return t, nil, fmt.Errorf("prepare attack: %w", err)
	}
	if err := os.WriteFile(t.NeighbourFile, []byte(secret), 0o600); err != nil {
		return t, nil, fmt.Errorf("prepare attack: %w", err)
	}
	if victim.how.ids {
		if err := os.Chown(t.NeighbourFile, victim.uid, victim.uid); err != nil {
			return t, nil, fmt.Errorf("prepare attack: %w", err)
		}
	}
	// Held by the agent, in the container's network namespace: if a slot can
	// reach this one it can reach a neighbour's as well.
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + t.Abstract, Net: "unix"})
	if err != nil {
		return t, nil, fmt.Errorf("prepare attack: %w", err)
	}
	return t, func() { _, _ = listener.Close(), os.Remove(t.AgentFile) }, nil
}

// attackDeadline is for a machine that is slow or busy: what the list itself
// waits for is bounded by a second each, and a list that is cut short counts as
// a level that the machine does not give.
const attackDeadline = 30 * time.Second

// attack runs the list inside the instance.
func (i *instance) attack(ctx context.Context, t probe.Targets) ([]probe.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, attackDeadline)
	defer cancel()
	text, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("prepare attack: %w", err)
	}
	var out, problems bytes.Buffer
	exit, err := i.run(ctx, Command{
		Argv: []string{i.plan.Confine, "attack"}, Stdin: bytes.NewReader(text), Stdout: &out, Stderr: &problems,
	})
	if err != nil {
		return nil, fmt.Errorf("run attack: %w", err)
	}
	var results []probe.Result
	if err := json.Unmarshal(out.Bytes(), &results); err != nil || exit.Code != 0 {
		return nil, &holder.StageError{Stage: "attack", Text: fmt.Sprintf("exit %d, %q, %q", exit.Code, out.String(), problems.String())}
	}
	return results, nil
}
