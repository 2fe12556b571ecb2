package nomad_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/orchestrator/backend/nomad"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/slots/sandbox/sandboxtest"
)

// capability is one word of the policy, where it stands between quotes, and
// machines its rule about those, which is no list.
var (
	capability = regexp.MustCompile(`"([a-z-]+)"(?:, |\]|,\s+#)`)
	machines   = regexp.MustCompile(`node \{\s+policy = "read"\s+\}`)
)

// lacksNodeRead is what the log says without it.
const lacksNodeRead = "the policy lacks node read"

// bootstrapped is the token that may do everything on a fresh agent.
func bootstrapped(t *testing.T, a *nomadtest.Agent) string {
	t.Helper()
	var token *api.ACLToken
	require.Eventually(t, func() (ok bool) {
		var err error
		token, _, err = a.Client.ACLTokens().Bootstrap(nil)
		return err == nil
	}, 90*time.Second, 100*time.Millisecond, "%s", a.Log())
	a.Client.SetSecretID(token.SecretID)
	a.Wait()
	return token.SecretID
}

// orchestrates is the Config of an orchestrator with the token, and a spec.
func orchestrates(t *testing.T, a *nomadtest.Agent, token, prefix string, log io.Writer) (nomad.Config, backend.Spec) {
	t.Helper()
	at := api.DefaultConfig()
	at.Address, at.SecretID = a.URL, token
	s := spec("")
	s.Isolation, s.Network = "none", true
	c := nomad.Config{
		Prefix: prefix, API: at, Pools: nil, Blocked: time.Second, Purge: false, Logger: hclog.New(&hclog.LoggerOptions{Output: log}),
		Job: jobs.Template{Driver: jobs.RawExec, Command: sandboxtest.Agent(t), Args: []string{"--isolation-attempt", "none"}},
	}
	c.Pools = append(c.Pools, s)
	return c, s
}

// works does once all that an orchestrator asks of Nomad but to hear of drains,
// and returns the first error.
func works(ctx context.Context, t *testing.T, c nomad.Config, s backend.Spec) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 25*time.Second)
	defer cancel()
	b, err := nomad.Open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { assert.NoError(t, b.Close()) }()
	for _, id := range []string{c.Prefix + "-0", c.Prefix + "-1"} {
		s.ID = id
		if _, err := b.Start(ctx, s); err != nil {
			return err
		}
	}
	low, err := b.List(ctx)
	if err != nil {
		return err
	}
	for _, one := range low {
		if one.Rank == 0 { // below another, so that Nomad has to stop it by itself
			if err := b.Stop(ctx, one.ID, 0); err != nil {
				return err
			}
		}
	}
	next, err := nomad.Open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { assert.NoError(t, next.Close()) }()
	if left, err := next.List(ctx); err != nil || len(left) != 1 {
		return fmt.Errorf("another one finds %d containers: Permission denied to see their claims: %w", len(left), err)
	}
	return nil
}

// hearsOfDrains drains the agent's machine for a while, and reports whether the
// orchestrator tells of that.
func hearsOfDrains(t *testing.T, a *nomadtest.Agent, c nomad.Config) bool {
	t.Helper()
	b := open(t, c)
	nodes, _, err := a.Client.Nodes().List(nil)
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	_, err = a.Client.Nodes().UpdateDrain(nodes[0].ID, &api.DrainSpec{Deadline: time.Hour}, false, nil)
	require.NoError(t, err)
	defer func() {
		_, err := a.Client.Nodes().UpdateDrain(nodes[0].ID, nil, true, nil)
		assert.NoError(t, err)
	}()
	for range 30 {
		pause(t.Context(), 100*time.Millisecond)
		if all := list(t, b); len(all) == 1 && all[0].Draining {
			return true
		}
	}
	return false
}

func TestThePolicyIsEnoughAndNothingOfItTooMuch(t *testing.T) {
	a := nomadtest.Start(t, nomadtest.Config{ACL: true})
	bootstrapped(t, a)
	t.Cleanup(func() {
		all, _, err := a.Client.Jobs().List(nil)
		require.NoError(t, err)
		for _, job := range all {
			_, _, _ = a.Client.Jobs().Deregister(job.ID, true, nil) // the agent ends as well
		}
	})
	found := capability.FindAllStringSubmatchIndex(jobs.Policy, -1)
	require.GreaterOrEqual(t, len(found), 5)
	type entry struct{ name, policy string }
	table := []entry{{"whole", jobs.Policy}, {"node-read", machines.ReplaceAllString(jobs.Policy, "")}}
	require.NotEqual(t, jobs.Policy, table[1].policy)
	for _, at := range found {
		table = append(table, entry{jobs.Policy[at[2]:at[3]], jobs.Policy[:at[2]] + "" + jobs.Policy[at[3]:]})
	}
	for _, e := range table {
		t.Run(e.name, func(t *testing.T) {
			rules := strings.NewReplacer(`"",`, "", `, ""`, "", `["", `, "[", `""`, "").Replace(e.policy)
			_, err := a.Client.ACLPolicies().Upsert(&api.ACLPolicy{Name: e.name, Rules: rules}, nil)
			require.NoError(t, err, rules)
			token, _, err := a.Client.ACLTokens().Create(&api.ACLToken{Name: e.name, Type: "client", Policies: []string{e.name}}, nil)
			require.NoError(t, err)
			var log bytes.Buffer
			c, s := orchestrates(t, a, token.SecretID, "berth-"+e.name, &log)
			err = works(t.Context(), t, c, s)
			switch e.name {
			case "whole":
				require.NoError(t, err)
				assert.NotContains(t, log.String(), lacksNodeRead)
				assert.True(t, hearsOfDrains(t, a, c))
				return
			case "node-read": // the only one that it can do without, so that it has to be told
				require.NoError(t, err)
				assert.Contains(t, log.String(), lacksNodeRead)
				assert.False(t, hearsOfDrains(t, a, c))
				return
			}
			require.ErrorContains(t, err, "Permission denied", "without %s", e.name)
		})
	}
}
