package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/cmd/berth/container"
	"berth/cmd/berth/rollout"
	"berth/cmd/berth/tooldemo"
	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
)

// toolLanguages are what the demo of tools speaks.
var toolLanguages = []string{"python", "typescript"}

// toolDemo is what the flags of tool demo say.
type toolDemo struct {
	pool      container.Pool
	languages []string
}

func (a *app) toolDemoCommand() *cobra.Command {
	d := toolDemo{pool: container.Pool{Containers: 1}}
	cmd := &cobra.Command{
		Use: "demo [flags] [-- FLAGS OF sandboxd serve]", Short: "Run tools with requirements, state and secrets on a pool of their own",
		Long: `Starts a pool, runs a Python and a TypeScript tool on it with requirements,
state and secrets, says of each run whether everything was as promised, and
stops the pool. It makes the wheels and the npm tarball that the tools need, and
asks no network. Slots need python3 with uv, or with venv and pip, and node with
npm. The status is 0 only when every run passed.`,
		Args: behindDash,
	}
	flags := cmd.Flags()
	flags.StringVar(&d.pool.Agent, "agent", besideMe("sandboxd"), "the sandboxd `binary` to start")
	flags.StringVar(&d.pool.Orchestrator, "orchestrator", besideMe("orchestrator"), "the orchestrator `binary` to start")
	flags.IntVar(&d.pool.Slots, "slots", 2, "slots of the container")
	flags.StringSliceVar(&d.languages, "language", toolLanguages, "of the tools to run")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("url") {
			return usagef("the demo starts a pool of its own: --url does not go with it")
		}
		if d.pool.Slots < 1 {
			return usagef("--slots must be above 0")
		}
		for _, l := range d.languages {
			if !slices.Contains(toolLanguages, l) {
				return usagef("--language %s: want %s", l, strings.Join(toolLanguages, " or "))
			}
		}
		if len(d.languages) == 0 {
			return usagef("--language names none")
		}
		d.pool.Args = args
		return a.toolDemo(ctx, d)
	})
	return cmd
}

// toolDemo starts the pool, runs the tools on it and stops it.
func (a *app) toolDemo(ctx context.Context, d toolDemo) error {
	dir, err := os.MkdirTemp("", "berth-tools-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	err = a.toolDemoIn(ctx, d, dir)
	if failed := os.RemoveAll(dir); failed != nil {
		err = errors.Join(err, fmt.Errorf("remove directory: %w", failed))
	}
	return err
}

func (a *app) toolDemoIn(ctx context.Context, d toolDemo, dir string) error {
	key, err := sealingKey(filepath.Join(dir, "config"))
	if err != nil {
		return err
	}
	packages, err := tooldemo.PlacePackages(dir)
	if err != nil {
		return err
	}
	d.pool.Args = append([]string{"--environments-packages", packages}, d.pool.Args...)
	config := d.pool.Config()
	config.Args = append(config.Args, "--config-key-file", key)
	c, err := container.Start(ctx, config)
	if err != nil {
		return err
	}
	secrets := tooldemo.NewSecrets()
	err = a.runTools(ctx, c, packages, secrets, d.languages)
	return errors.Join(err, secretsOnDisk(filepath.Dir(c.DataDir), secrets), c.Close())
}

// runTools runs the tools and prints how that went.
func (a *app) runTools(ctx context.Context, c *container.Container, packages string, secrets tooldemo.Secrets, languages []string) error {
	pool, err := client.New(client.Config{URL: c.URL, Token: c.Token})
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := (rollout.Pool{Client: pool}).Started(ctx); err != nil {
		return err
	}
	organization := pool.Organization("demo")
	config, err := organization.DefaultSandbox(ctx, poolapi.SandboxIsolated)
	if err != nil {
		return err
	}
	for _, v := range tooldemo.Variables(packages, secrets) {
		if _, err := organization.PutVariable(ctx, config.ID, v); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.out, "pool ready at %s, packages in %s\n", c.URL, packages)
	report := tooldemo.Run(ctx, organization, secrets, languages, a.out)
	fmt.Fprintln(a.out)
	if err := report.Write(a.out); err != nil {
		return err
	}
	if n := report.Failures(); n > 0 {
		return fmt.Errorf("%d of %d runs failed", n, len(report.Rows))
	}
	return context.Cause(ctx)
}

// secretsOnDisk is an error when a file below the directory shows a secret.
func secretsOnDisk(dir string, secrets tooldemo.Secrets) error {
	_, shown, err := secrets.Below(dir)
	if len(shown) > 0 {
		err = errors.Join(err, fmt.Errorf("%s shows a secret", strings.Join(shown, ", ")))
	}
	return err
}
