package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

// organizationFlag adds --organization to a command and those below it.
func (a *app) organizationFlag(cmd *cobra.Command, into *string) {
	cmd.PersistentFlags().StringVar(into, "organization", "", "`name` of the organization; BERTH_ORGANIZATION, else "+poolapi.DefaultOrganization)
}

// inOrganization is interruptible for what concerns one organisation.
func (a *app) inOrganization(name *string, do func(ctx context.Context, o client.Organization, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(ctx, c.Organization(cmp.Or(*name, a.getenv("BERTH_ORGANIZATION"))), cmd, args)
	})
}

func (a *app) configCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "config", Short: "Settings of an organization's function tools",
		Long: `Shows and changes how the function tools of an organization run: its sandbox
configs, one for each type (local, isolated; e2b is isolated), their
environment variables, and whether the organization is privileged.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprint(a.err, cmd.UsageString())
			return &failure{status: exitUsage}
		},
	}
	a.organizationFlag(cmd, &name)
	env := &cobra.Command{Use: "env", Short: "Environment variables of a sandbox config", Args: arguments(0, 0), RunE: cmd.RunE}
	env.AddCommand(a.envSetCommand(&name), a.envListCommand(&name), a.envUnsetCommand(&name))
	cmd.AddCommand(a.configListCommand(&name), a.configSetCommand(&name), a.configDeleteCommand(&name), env, a.configOrgCommand(&name))
	return cmd
}

func (a *app) configListCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the sandbox configs", Args: arguments(0, 0),
		RunE: a.inOrganization(name, func(ctx context.Context, o client.Organization, cmd *cobra.Command, _ []string) error {
			all := poolapi.SandboxConfigs{SandboxConfigs: []poolapi.SandboxConfig{}}
			for page := (client.Page{}); ; page.After = all.After {
				list, err := o.Sandboxes(ctx, "", page)
				if err != nil {
					return err
				}
				all.SandboxConfigs, all.After = append(all.SandboxConfigs, list.SandboxConfigs...), list.After
				if list.After == "" {
					break
				}
			}
			if a.asJSON(cmd, true) {
				return a.printJSON(all)
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "TYPE\tID\tCONFIG")
			for _, c := range all.SandboxConfigs {
				fmt.Fprintf(w, "%s\t%s\t%s\n", c.Type, c.ID, c.Config)
			}
			return w.Flush()
		}),
	}
}

// settings are what the arguments of config set say.
type settings struct {
	file     string
	pip, npm []string
	replace  bool
}

func (a *app) configSetCommand(name *string) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use: "set TYPE [NAME=VALUE...]", Short: "Make or change the sandbox config of a type",
		Long: `Changes the settings that are named and leaves the others, or with --replace
takes those back to their defaults. A value is JSON, or else a text; null is
the default.

local:    sandbox_dir use_venv venv_name pip_requirements
isolated: template timeout_s pip_requirements npm_requirements`,
		Example: `  berth config set isolated timeout_s=600 --pip httpx==0.27.2 --pip numpy
  berth config set local sandbox_dir=/srv/tools`,
		Args: arguments(1, -1),
	}
	flags := cmd.Flags()
	flags.StringVar(&s.file, "file", "", "`file` of settings as a JSON object; -: the standard input")
	flags.StringArrayVar(&s.pip, "pip", nil, "`NAME[==VERSION]` for pip_requirements, which it replaces; may be repeated")
	flags.StringArrayVar(&s.npm, "npm", nil, "`NAME[@VERSION]` for npm_requirements, which it replaces; may be repeated")
	flags.BoolVar(&s.replace, "replace", false, "take settings that are not named back to their defaults")
	cmd.RunE = a.inOrganization(name, func(ctx context.Context, o client.Organization, cmd *cobra.Command, args []string) error {
		of := poolapi.SandboxType(args[0])
		text, err := s.read(a, args[1:])
		if err != nil {
			return err
		}
		var made poolapi.SandboxConfig
		if s.replace {
			made, err = o.PutSandbox(ctx, of, text)
		} else if made, err = a.sandboxOf(ctx, o, of); err == nil {
			made, err = o.PatchSandbox(ctx, made.ID, poolapi.SandboxConfigRequest{Type: of, Config: text})
		}
		if err != nil {
			return err
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(made)
		}
		fmt.Fprintf(a.out, "%s  %s  %s\n", made.Type, made.ID, made.Config)
		return nil
	})
	return cmd
}

// sandboxOf is the sandbox config of the type; one of defaults when there is
// none.
func (a *app) sandboxOf(ctx context.Context, o client.Organization, of poolapi.SandboxType) (poolapi.SandboxConfig, error) {
	switch of {
	case poolapi.SandboxLocal, poolapi.SandboxIsolated, poolapi.SandboxE2B:
		return o.DefaultSandbox(ctx, of)
	default:
		return poolapi.SandboxConfig{}, usagef("%q is no type of sandbox: want local, isolated or e2b", of)
	}
}

// read is the settings as JSON.
func (s *settings) read(a *app, pairs []string) (json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	if s.file != "" {
		text, err := a.readFile(s.file)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &all); err != nil {
			return nil, usagef("%s is no JSON object: %v", s.file, err)
		}
	}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, usagef("%q is no setting: want NAME=VALUE", pair)
		}
		all[name] = jsonOr(value)
	}
	for name, list := range map[string][]string{"pip_requirements": s.pip, "npm_requirements": s.npm} {
		if list == nil {
			continue
		}
		text, err := json.Marshal(requirements(name == "npm_requirements", list))
		if err != nil {
			return nil, fmt.Errorf("encode requirements: %w", err)
		}
		all[name] = text
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	return text, nil
}

// jsonOr is the text as it is if that is JSON, else as a JSON string.
func jsonOr(text string) json.RawMessage {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return json.RawMessage(`""`) // a text always has a form in JSON
	}
	return quoted
}

// requirements reads packages as pip and npm write them. The server says which
// of them cannot be.
func requirements(npm bool, list []string) []api.Requirement {
	out := make([]api.Requirement, len(list))
	for i, text := range list {
		at := strings.IndexAny(text, "=<>!~")
		if npm {
			at = strings.LastIndexByte(text, '@')
		}
		if at <= 0 {
			out[i] = api.Requirement{Name: text}
			continue
		}
		version := text[at:]
		if npm {
			version = version[1:]
		}
		out[i] = api.Requirement{Name: text[:at], Version: version}
	}
	return out
}

// readFile reads a file; - is the standard input.
func (a *app) readFile(path string) ([]byte, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(a.in)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

func (a *app) configDeleteCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "delete TYPE", Short: "Delete the sandbox config of a type, and its variables", Args: arguments(1, 1),
		RunE: a.inOrganization(name, func(ctx context.Context, o client.Organization, cmd *cobra.Command, args []string) error {
			list, err := o.Sandboxes(ctx, poolapi.SandboxType(args[0]), client.Page{})
			if err != nil {
				return err
			}
			if len(list.SandboxConfigs) == 0 {
				return fmt.Errorf("there is no sandbox config of type %s", args[0])
			}
			id := list.SandboxConfigs[0].ID
			if err := o.DeleteSandbox(ctx, id); err != nil {
				return err
			}
			if a.asJSON(cmd, true) {
				return a.printJSON(poolapi.Deleted{ID: id, Deleted: true})
			}
			fmt.Fprintf(a.out, "%s  deleted\n", id)
			return nil
		}),
	}
}

func (a *app) configOrgCommand(name *string) *cobra.Command {
	var privileged bool
	cmd := &cobra.Command{
		Use: "org", Short: "Show the organization, or change it",
		Long: `Shows the organization. With --privileged its tools run on the server's host
unless they ask for isolation, with --privileged=false not; both are for
operators.`,
		Args: arguments(0, 0),
	}
	cmd.Flags().BoolVar(&privileged, "privileged", false, "run its tools on the server's host")
	cmd.RunE = a.inOrganization(name, func(ctx context.Context, o client.Organization, cmd *cobra.Command, _ []string) error {
		found, err := o.Get(ctx)
		if err == nil && cmd.Flags().Changed("privileged") {
			found, err = o.Patch(ctx, poolapi.OrganizationPatch{PrivilegedTools: &privileged})
		}
		if err != nil {
			return err
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(found)
		}
		fmt.Fprintf(a.out, "%s  privileged tools: %t\n", found.ID, found.PrivilegedTools)
		return nil
	})
	return cmd
}
