package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth/jobs"
)

func (a *app) nomadRotateCommand() *cobra.Command {
	var t jobs.Template
	cmd := &cobra.Command{
		Use: "rotate", Short: "Give a job another secret",
		Long: `Writes another secret into the variable of the job. Containers of a pool get
their new tokens by a signal and take the old ones a while longer, so that no
call fails and nothing is started again. The orchestrator's own token, by
--job berth-orchestrator, is that of its callers: it is started again with it.`,
		Args: arguments(0, 0),
	}
	jobFlags(cmd, &t)
	cmd.RunE = onNomad(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		o, err := operator(t)
		if err != nil {
			return err
		}
		defer o.Close()
		path, err := o.Rotate(ctx, t.Job)
		if err != nil {
			return err
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(map[string]string{"job": t.Job, "variable": path})
		}
		fmt.Fprintf(a.out, "variable %s has another secret\n", path)
		return nil
	})
	return cmd
}
