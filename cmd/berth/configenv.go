package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
)

func (a *app) envSetCommand(name *string) *cobra.Command {
	var file, description string
	cmd := &cobra.Command{
		Use: "set TYPE KEY[=VALUE]", Short: "Set an environment variable",
		Long: `Sets a variable of the sandbox config of the type. Without =VALUE the value is
read from the standard input, or from --file, and loses one newline at its end:
so it is neither in the shell's history nor in the list of processes.`,
		Example: "  berth config env set isolated API_KEY < key.txt",
		Args:    arguments(2, 2),
	}
	cmd.Flags().StringVar(&file, "file", "-", "`file` of the value; -: the standard input")
	cmd.Flags().StringVar(&description, "description", "", "what the variable is for")
	cmd.RunE = a.inOrganization(name, func(ctx context.Context, o client.Organization, cmd *cobra.Command, args []string) error {
		key, value, given := strings.Cut(args[1], "=")
		if given && cmd.Flags().Changed("file") {
			return usagef("the value is either behind the = or in --file")
		}
		if !given {
			text, err := a.readFile(file)
			if err != nil {
				return err
			}
			value = strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
		}
		sandbox, err := a.sandboxOf(ctx, o, poolapi.SandboxType(args[0]))
		if err != nil {
			return err
		}
		v, err := o.PutVariable(ctx, sandbox.ID, poolapi.EnvironmentVariableRequest{Key: key, Value: value, Description: description})
		if err != nil {
			return err
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(v)
		}
		fmt.Fprintf(a.out, "%s  %s  set\n", v.Key, v.ID)
		return nil
	})
	return cmd
}

// variablesOf are all variables of the sandbox config of the type.
func (a *app) variablesOf(ctx context.Context, o client.Organization, of string, reveal bool) (poolapi.EnvironmentVariables, error) {
	sandbox, err := a.sandboxOf(ctx, o, poolapi.SandboxType(of))
	if err != nil {
		return poolapi.EnvironmentVariables{}, err
	}
	return o.Variables(ctx, sandbox.ID, client.Page{}, reveal)
}

func (a *app) envListCommand(name *string) *cobra.Command {
	var reveal bool
	cmd := &cobra.Command{Use: "list TYPE", Short: "List the environment variables", Args: arguments(1, 1)}
	cmd.Flags().BoolVar(&reveal, "reveal", false, "show the values, which is for operators")
	cmd.RunE = a.inOrganization(name, func(ctx context.Context, o client.Organization, cmd *cobra.Command, args []string) error {
		list, err := a.variablesOf(ctx, o, args[0], reveal)
		if err != nil {
			return err
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(list)
		}
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "KEY\tVALUE\tDESCRIPTION")
		for _, v := range list.EnvironmentVariables {
			fmt.Fprintf(w, "%s\t%s\t%s\n", v.Key, plainText(v.Value), plainText(v.Description))
		}
		return w.Flush()
	})
	return cmd
}

func (a *app) envUnsetCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "unset TYPE KEY...", Short: "Delete environment variables", Args: arguments(2, -1),
		RunE: a.inOrganization(name, func(ctx context.Context, o client.Organization, cmd *cobra.Command, args []string) error {
			list, err := a.variablesOf(ctx, o, args[0], false)
			if err != nil {
				return err
			}
			ids := map[string]string{}
			for _, v := range list.EnvironmentVariables {
				ids[v.Key] = v.ID
			}
			for _, key := range args[1:] {
				if ids[key] == "" {
					return fmt.Errorf("there is no variable %s: nothing was deleted", plainText(key))
				}
			}
			var gone []poolapi.Deleted
			for _, key := range args[1:] {
				if err := o.DeleteVariable(ctx, ids[key]); err != nil {
					return err
				}
				gone = append(gone, poolapi.Deleted{ID: ids[key], Deleted: true})
			}
			if a.asJSON(cmd, true) {
				return a.printJSON(gone)
			}
			fmt.Fprintf(a.out, "%s  unset\n", strings.Join(args[1:], " "))
			return nil
		}),
	}
}
