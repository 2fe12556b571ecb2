package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

func (a *app) toolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "tool", Short: "Function tools: run a function's source with JSON arguments", Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprint(a.err, cmd.UsageString())
			return &failure{status: exitUsage}
		},
	}
	cmd.AddCommand(a.toolRunCommand(), a.toolDemoCommand())
	return cmd
}

// toolRun is what the flags of tool run say.
type toolRun struct {
	organization, name, args, schema, sandbox string
	env, pip, npm                             []string
	timeout                                   time.Duration
	recreate, fresh                           bool
}

func (a *app) toolRunCommand() *cobra.Command {
	var t toolRun
	cmd := &cobra.Command{
		Use: "run FILE", Short: "Run a function of a source file",
		Long: `Runs a function of a Python (.py), TypeScript (.ts) or JavaScript (.js) file and
prints what it returns; what it writes, and what the build of its environment
has to say, goes to the standard error. A function
that fails ends with status 1.`,
		Example: "  berth tool run add.py --args '{\"a\": 1, \"b\": 2}' --pip numpy",
		Args:    arguments(1, 1),
	}
	a.organizationFlag(cmd, &t.organization)
	flags := cmd.Flags()
	flags.StringVar(&t.name, "name", "", "`name` of the function; without it that of the file")
	flags.StringVar(&t.args, "args", "{}", "arguments as a JSON `object`; @FILE reads them, @- from the standard input")
	flags.StringVar(&t.schema, "schema", "", "`file` of the JSON schema of the parameters, which TypeScript needs")
	flags.StringVar(&t.sandbox, "sandbox", "auto", "where to run it: auto, local or isolated")
	flags.StringArrayVar(&t.env, "env", nil, "`K=V` for its environment; may be repeated")
	flags.StringArrayVar(&t.pip, "pip", nil, "`NAME[==VERSION]` that it needs; may be repeated")
	flags.StringArrayVar(&t.npm, "npm", nil, "`NAME[@VERSION]` that it needs; may be repeated")
	flags.DurationVar(&t.timeout, "timeout", 3*time.Minute, "how long it may take")
	flags.BoolVar(&t.recreate, "recreate", false, "build its environment anew")
	flags.BoolVar(&t.fresh, "fresh", false, "run it in a slot that nothing ran in before")
	cmd.RunE = a.inOrganization(&t.organization, func(ctx context.Context, o client.Organization, cmd *cobra.Command, args []string) error {
		run, err := t.request(a, args[0])
		if err != nil {
			return err
		}
		result, err := o.FollowTool(ctx, run, func(line string) { fmt.Fprintln(a.err, plainText(line)) })
		if err != nil {
			return err
		}
		return a.printTool(cmd, result)
	})
	return cmd
}

// request is the run of the file.
func (t *toolRun) request(a *app, file string) (poolapi.ToolRun, error) {
	var run poolapi.ToolRun
	if t.timeout <= 0 {
		return run, usagef("--timeout must be above 0")
	}
	extension := filepath.Ext(file)
	kind := map[string]string{".py": "python", ".ts": "typescript", ".mts": "typescript", ".js": "javascript", ".mjs": "javascript"}[extension]
	if kind == "" {
		return run, usagef("%s: want a .py, .ts or .js file", file)
	}
	source, err := a.readFile(file)
	if err != nil {
		return run, err
	}
	text := []byte(t.args)
	if path, ok := strings.CutPrefix(t.args, "@"); ok {
		if text, err = a.readFile(path); err != nil {
			return run, err
		}
	}
	if err := json.Unmarshal(text, &run.Args); err != nil {
		return run, usagef("--args is no JSON object")
	}
	if t.schema != "" {
		if run.Tool.JSONSchema, err = a.readFile(t.schema); err != nil {
			return run, err
		}
		if !json.Valid(run.Tool.JSONSchema) {
			return run, usagef("%s is no JSON", t.schema)
		}
	}
	run.Tool.Name = cmp.Or(t.name, strings.TrimSuffix(filepath.Base(file), extension))
	run.Tool.SourceCode, run.Tool.SourceType = string(source), kind
	run.Tool.PipRequirements, run.Tool.NpmRequirements = requirements(false, t.pip), requirements(true, t.npm)
	run.TimeoutS, run.Env = api.Seconds(t.timeout.Seconds()), map[string]*string{}
	reuse := !t.fresh
	run.Sandbox = &poolapi.ToolSandbox{Type: poolapi.SandboxType(t.sandbox), Reuse: &reuse, Recreate: t.recreate}
	for _, pair := range t.env {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return run, usagef("%q is no variable: want K=V", pair)
		}
		run.Env[name] = &value
	}
	return run, nil
}

// printTool prints what came of a run.
func (a *app) printTool(cmd *cobra.Command, result poolapi.ToolResult) error {
	failed := result.Status != api.FunctionSuccess
	if a.asJSON(cmd, false) {
		if err := a.printJSON(result); err != nil || !failed {
			return err
		}
		return &failure{status: exitFailed}
	}
	for _, text := range slices.Concat(result.Stdout, result.Stderr) {
		fmt.Fprintln(a.err, strings.TrimSuffix(text, "\n"))
	}
	if failed {
		return &failure{exitFailed, fmt.Errorf("%s", result.Text)}
	}
	if len(result.FuncReturn) > 0 && result.FuncReturn[0] == '"' && !result.Truncated {
		fmt.Fprintln(a.out, result.Text) // a text as it is
		return nil
	}
	fmt.Fprintf(a.out, "%s\n", result.FuncReturn)
	return nil
}
