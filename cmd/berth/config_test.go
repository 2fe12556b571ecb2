package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

func TestConfigShowsAndChangesSettings(t *testing.T) {
	p := start(t, "1")
	set := p.run("config", "set", "e2b", "timeout_s=60", "template=null", "--pip", "httpx==0.27.2", "--pip", "numpy>=2,<3", "--npm", "@a/b@^1.0", "--npm", "left-pad")
	require.Zero(t, set.status, set.stderr)
	c := decode[poolapi.SandboxConfig](t, set.stdout)
	assert.JSONEq(t, `{"timeout_s":60,"pip_requirements":[{"name":"httpx","version":"==0.27.2"},{"name":"numpy","version":">=2,<3"}],
		"npm_requirements":[{"name":"@a/b","version":"^1.0"},{"name":"left-pad"}]}`, string(c.Config))
	set = p.feed(`{"timeout_s":61}`, "config", "set", "isolated", "--file", "-")
	require.Zero(t, set.status, set.stderr)
	assert.Contains(t, string(decode[poolapi.SandboxConfig](t, set.stdout).Config), "left-pad", "what is not named stays")
	set = p.run("config", "set", "isolated", "--replace")
	assert.JSONEq(t, `{"timeout_s":300,"pip_requirements":[],"npm_requirements":[]}`, string(decode[poolapi.SandboxConfig](t, set.stdout).Config))
	assert.Empty(t, decode[poolapi.SandboxConfigs](t, p.run("config", "list", "--organization", "globex").stdout).SandboxConfigs)
	assert.Regexp(t, `(?m)^isolated +sandbox-\S+ +\{`, p.run("config", "list", "--json=false").stdout)

	const planted = "hunter2=hunter2"
	for _, r := range []ran{p.feed(planted+"\n", "config", "env", "set", "isolated", "TOKEN"), p.run("config", "env", "set", "isolated", "PLAIN=a=b", "--description", "x")} {
		require.Zero(t, r.status, r.stderr)
		assert.NotContains(t, r.stdout+r.stderr, planted)
	}
	masked := p.run("config", "env", "list", "isolated", "--json=false")
	assert.NotContains(t, masked.stdout, planted)
	assert.Regexp(t, `(?m)^PLAIN +\*+ +x$`, masked.stdout)
	shown := decode[poolapi.EnvironmentVariables](t, p.run("config", "env", "list", "isolated", "--reveal").stdout).EnvironmentVariables
	require.Len(t, shown, 2)
	assert.Equal(t, planted, shown[0].Value)
	assert.Equal(t, "a=b", shown[1].Value)
	assert.Equal(t, 1, p.run("config", "env", "unset", "isolated", "TOKEN", "NOPE").status)
	assert.Zero(t, p.run("config", "env", "unset", "isolated", "TOKEN", "PLAIN").status)
	assert.Empty(t, decode[poolapi.EnvironmentVariables](t, p.run("config", "env", "list", "isolated").stdout).EnvironmentVariables)

	o := decode[poolapi.Organization](t, p.run("config", "org", "--organization", "acme", "--privileged").stdout)
	assert.Equal(t, poolapi.Organization{ID: "acme", PrivilegedTools: true}, o)
	p.env = append(p.env, "BERTH_ORGANIZATION=acme")
	assert.Contains(t, p.run("config", "org", "--json=false", "--privileged=false").stdout, "acme  privileged tools: false")
	assert.Equal(t, 1, p.run("config", "delete", "isolated").status, "it is another organization's")
	assert.Zero(t, p.run("config", "delete", "isolated", "--organization", "default").status)

	for _, args := range [][]string{
		{"config"},
		{"config", "dance"},
		{"config", "set"},
		{"config", "set", "docker"},
		{"config", "set", "local", "x"},
		{"config", "env", "set", "local"},
		{"config", "env", "set", "local", "A=b", "--file", "x"},
	} {
		assert.Equal(t, exitUsage, p.run(args...).status, "%q", args)
	}
	bad := p.run("config", "set", "local", "timeout_s=1")
	assert.Equal(t, 1, bad.status)
	assert.Contains(t, bad.stderr, "timeout_s")
	assert.Zero(t, p.stop())
	assert.NotContains(t, p.log.String(), planted)
}

func TestRequirementsAreReadAsTheirToolsWriteThem(t *testing.T) {
	assert.Equal(t, []api.Requirement{{Name: "a"}, {Name: "b[c]", Version: "==1"}, {Name: "d", Version: "~=2"}},
		requirements(false, []string{"a", "b[c]==1", "d~=2"}))
	assert.Equal(t, []api.Requirement{{Name: "@a/b"}, {Name: "@a/b", Version: "1"}, {Name: "c", Version: "^2"}},
		requirements(true, []string{"@a/b", "@a/b@1", "c@^2"}))
	for text, want := range map[string]string{"1": `1`, "null": `null`, "x y": `"x y"`, `"x`: `"\"x"`} {
		assert.JSONEq(t, want, string(jsonOr(text)))
	}
}
