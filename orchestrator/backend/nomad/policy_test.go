package nomad_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/slots/sandbox/sandboxtest"
)

// capability is one word of the policy, where it stands between quotes.
var capability = regexp.MustCompile(`"([a-z-]+)"(?:, |\]|,\s+#)`)

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

// works does once all that an orchestrator asks of Nomad, and returns the first
// error.
func works(ctx context.Context, t *testing.T, a *nomadtest.Agent, token, prefix string) error {
	t.Helper()
	at := api.DefaultConfig()
	at.Address, at.SecretID = a.URL, token
	s := spec("")
	s.Isolation, s.Network = "none", true
	c := nomad.Config{
		Prefix: prefix, API: at, Pools: nil, Blocked: time.Second, Purge: false, Logger: newDouble(t).config(t).Logger,
		Job: jobs.Template{Driver: jobs.RawExec, Command: sandboxtest.Agent(t), Args: []string{"--isolation-attempt", "none"}},
	}
	c.Pools = append(c.Pools, s)
	ctx, cancel := context.WithTimeout(ctx, 25*time.Second)
	defer cancel()
	b, err := nomad.Open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { assert.NoError(t, b.Close()) }()
	for _, id := range []string{prefix + "-0", prefix + "-1"} {
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
	table := []entry{{"whole", jobs.Policy}}
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
			err = works(t.Context(), t, a, token.SecretID, "berth-"+e.name)
			if e.name == "whole" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "Permission denied", "without %s", e.name)
		})
	}
}
