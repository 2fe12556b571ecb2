package nomadtest_test

import (
	"bytes"
	"os/exec"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad/nomadtest"
)

// bootstrapped makes the first token of an agent with ACLs, and waits until its
// node is ready.
func bootstrapped(t *testing.T, a *nomadtest.Agent) (secret string) {
	t.Helper()
	require.Eventually(t, func() bool {
		first, _, err := a.Client.ACLTokens().Bootstrap(nil)
		if err == nil {
			secret = first.SecretID
		}
		return err == nil
	}, patience, 50*time.Millisecond, "it has a leader")
	a.Client.SetSecretID(secret)
	a.Wait()
	return secret
}

// Nomad's words differ from release to release: what is known of them is held
// against the real ones.
func TestBerthSaysWhatMendsAnErrorOfNomads(t *testing.T) {
	t.Parallel()
	a := nomadtest.Start(t, nomadtest.Config{ACL: true})
	secret := bootstrapped(t, a)
	job := api.NewServiceJob("web", "web", "global", 50).AddDatacenter("*").AddTaskGroup(
		api.NewTaskGroup("g", 1).AddTask(api.NewTask("t", "raw_exec").SetConfig("command", "/bin/sleep").SetConfig("args", []string{"600"})),
	)
	_, _, err := a.Client.Jobs().Register(job, nil)
	require.NoError(t, err)

	token := "NOMAD_TOKEN=" + secret
	berth := func(environ []string, words ...string) (cmd *exec.Cmd, said *bytes.Buffer) {
		cmd = exec.CommandContext(t.Context(), program(t, "berth"), append([]string{"nomad"}, words...)...)
		cmd.Env = append(append(a.Command().Env, "BERTH_URL=http://127.0.0.1:1"), environ...)
		said = new(bytes.Buffer)
		cmd.Stderr = said
		return cmd, said
	}
	broken := []string{"sandboxd", "--driver", "raw_exec", "--sandboxd", "/no/such/program", "--count", "1"}
	deploy, plan := append([]string{"deploy"}, broken...), append([]string{"plan"}, broken...)
	for _, c := range []struct {
		environ string
		words   []string
		status  int
		says    string
	}{
		{"", []string{"status"}, 78, "name a token that may do this by NOMAD_TOKEN"},
		{"", plan, 255, "NOMAD_TOKEN"},
		{"", deploy, 78, "NOMAD_TOKEN"},
		{"", []string{"rotate"}, 78, "NOMAD_TOKEN"},
		{"", []string{"drain", "default-1"}, 78, "NOMAD_TOKEN"},
		{"", []string{"drain", "--node", a.Name}, 78, "NOMAD_TOKEN"},
		{"NOMAD_TOKEN=00000000-0000-0000-0000-000000000000", []string{"status"}, 78, "NOMAD_TOKEN"},
		{token, []string{"status"}, 1, `there is no job berth-default; name one that "nomad job status" has`},
		{token, []string{"rotate"}, 1, `"berth nomad deploy" makes that of a job`},
		{token, []string{"drain", "default-1"}, 1, `"berth nomad status" lists them`},
		{token, []string{"drain", "--node", "nobody"}, 1, `"nomad node status" lists them`},
		{token, append(deploy, "--job", "web"), 1, "it is not a pool's: want one group sandboxd with one task; name a pool's by --job"},
		{token, append(plan, "--job", "web"), 255, "it is not a pool's"},
		{token, append(deploy, "--namespace", "nowhere"), 78, `name one that "nomad namespace list" has`},
		{token, append(plan, "--namespace", "nowhere"), 255, `name one that "nomad namespace list" has`},
	} {
		cmd, said := berth([]string{c.environ}, c.words...)
		_ = cmd.Run() // the status tells
		assert.Equal(t, c.status, cmd.ProcessState.ExitCode(), "%q: %s", c.words, said)
		assert.Contains(t, said.String(), c.says, "%q", c.words)
	}
	cmd, said := berth([]string{token, "NOMAD_REGION=mars"}, "status")
	require.Error(t, cmd.Run())
	assert.Contains(t, said.String(), "name another region by --region or NOMAD_REGION")

	// Nomad goes away while a deploy follows what it does.
	cmd, said = berth([]string{token}, deploy...)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool {
		d, _, err := a.Client.Jobs().LatestDeployment("berth-default", nil)
		return err == nil && d != nil
	}, patience, 50*time.Millisecond)
	a.Kill()
	_ = cmd.Wait() // the status tells
	assert.Equal(t, 69, cmd.ProcessState.ExitCode(), "%s", said)
	assert.Contains(t, said.String(), "it goes on all the same, unless `nomad deployment fail ")
	assert.Contains(t, said.String(), "` ends it; \"berth nomad status --job berth-default\" says how far it is")
}
