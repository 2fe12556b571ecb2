package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	"berth/orchestrator/backend"
	"berth/sandboxd/client"
	"berth/slots"
)

// probeAll asks of every spec whether a container of it could start here. An
// error says of one that none can, whenever it is tried: what is missing, and
// what mends it. Whatever may be otherwise the next time is left to the starts.
func (b *Backend) probeAll(ctx context.Context, specs []backend.Spec) error {
	errs := make([]error, len(specs))
	var work sync.WaitGroup
	for i, spec := range specs {
		work.Go(func() { errs[i] = b.probe(ctx, spec) })
	}
	work.Wait()
	return errors.Join(errs...)
}

func (b *Backend) probe(ctx context.Context, spec backend.Spec) error {
	require, err := slots.ParseRequirement(spec.Isolation)
	if err != nil {
		return fmt.Errorf("probe isolation: %w", err)
	}
	nothing := spec.Isolation != "" && require.Level == slots.LevelNone && len(require.Axes) == 0 && spec.Network
	if nothing || b.isGiven(ctx, spec.Template, require) {
		return nil
	}
	answer, err := b.askProbe(ctx, spec)
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("probe isolation: %w", context.Cause(ctx))
	case ended && (exit.ExitCode() == cannotBegin || exit.ExitCode() == notIsolated):
		return fmt.Errorf("no container of %s can start: %s", spec.Template, strings.TrimSpace(string(exit.Stderr)))
	case err != nil:
		b.config.Logger.Warn("cannot probe isolation, each container does it by itself", "error", err)
		return nil
	}
	var report struct {
		Isolation *slots.Isolation `json:"isolation"`
		Refusal   string           `json:"refusal"`
	}
	if err := json.Unmarshal(answer, &report); err != nil || report.Isolation == nil {
		return fmt.Errorf("probe isolation: %s is no sandboxd: it answered %.100q", b.config.Binary, answer)
	}
	if report.Refusal != "" {
		return fmt.Errorf("no container of %s can start: %s", spec.Template, report.Refusal)
	}
	return nil
}

// isGiven reports whether a container of the template is up that has what is
// required: then it can be had here.
func (b *Backend) isGiven(ctx context.Context, template string, require slots.Requirement) bool {
	for _, up := range b.feed.List() {
		if up.Template != template {
			continue
		}
		c, err := client.New(client.Config{URL: up.URL, Token: up.Token, HTTPClient: b.http, Retries: -1})
		if err != nil {
			continue
		}
		health, err := c.Health(ctx)
		if err == nil && len(require.Unmet(health.Isolation)) == 0 {
			return true
		}
	}
	return false
}

// askProbe runs the program's probe as it would run a container of the spec,
// in a directory beside those of the containers: elsewhere slots may not get
// through to theirs. It returns what the probe wrote.
func (b *Backend) askProbe(ctx context.Context, spec backend.Spec) (answer []byte, err error) {
	dir, err := os.MkdirTemp(b.config.Dir, ".probe-") // no name of a container
	if err != nil {
		return nil, fmt.Errorf("probe isolation: %w", err)
	}
	defer func() { err = errors.Join(err, RemoveTree(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("probe isolation: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, b.config.StartTimeout)
	defer cancel()
	args := append([]string{"probe", "--json", "--data-dir", dir, "--hide", b.config.Dir}, specArguments(spec)...)
	cmd := exec.CommandContext(ctx, b.config.Binary, append(args, b.config.Args...)...)
	cmd.Env = environ(nil)
	cmd.WaitDelay = askTimeout // what it has started may hold its output
	if answer, err = cmd.Output(); err != nil {
		return nil, fmt.Errorf("probe isolation: %w", err)
	}
	return answer, nil
}
