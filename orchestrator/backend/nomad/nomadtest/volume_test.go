package nomadtest_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/dockertest"
	"berth/slots/sandbox/sandboxtest"
)

// kept is a cluster of one machine that has the volume berth-configs.
type kept struct {
	*nomadtest.Agent
	t     *testing.T
	token string
}

// deploy deploys the orchestrator, whose pool needs no container.
func (k *kept) deploy(words ...string) {
	k.t.Helper()
	said, status := berth(k.t, k.Agent, append([]string{"deploy", "orchestrator"}, words...)...)
	if status != 0 {
		all, _, _ := k.Client.Jobs().Allocations(jobs.OrchestratorJob, true, nil)
		for _, one := range all {
			log, _ := k.Command("alloc", "logs", "-stderr", one.ID).CombinedOutput()
			said += "\n" + string(log[max(0, len(log)-2<<10):])
		}
	}
	require.Zero(k.t, status, "%v: %s", words, said)
	v, _, err := k.Client.Variables().Read(jobs.VariablePath(jobs.OrchestratorJob), nil)
	require.NoError(k.t, err)
	k.token = v.Items[jobs.Secret]
}

// tenants are an organisation at each of the orchestrators that serve, when
// they are so many and none of them was there before.
func (k *kept) tenants(n int, before ...string) (all []client.Organization, addresses []string) {
	k.t.Helper()
	require.Eventually(k.t, func() bool {
		all, addresses = nil, nil
		services, _, err := k.Client.Services().Get(jobs.OrchestratorJob, nil)
		if err != nil || len(services) != n {
			return false
		}
		for _, s := range services {
			address := fmt.Sprintf("http://%s:%d", s.Address, s.Port)
			c, err := client.New(client.Config{URL: address, Token: k.token})
			require.NoError(k.t, err)
			if strings.Contains(strings.Join(before, " "), address) || c.Ready(k.t.Context()) != nil {
				return false
			}
			all, addresses = append(all, c.Organization("acme")), append(addresses, address)
		}
		return true
	}, patience, 100*time.Millisecond, "%d orchestrators", n)
	return all, addresses
}

// knows holds what an orchestrator knows against what it is to know.
func (k *kept) knows(o client.Organization, value string) {
	k.t.Helper()
	c, err := o.DefaultSandbox(k.t.Context(), poolapi.SandboxIsolated)
	require.NoError(k.t, err)
	list, err := o.Variables(k.t.Context(), c.ID, client.Page{}, true)
	require.NoError(k.t, err)
	require.Len(k.t, list.EnvironmentVariables, 1)
	assert.Equal(k.t, value, list.EnvironmentVariables[0].Value)
}

// volumeClient has the machine have the volume in the directory.
func volumeClient(dir string) string {
	return fmt.Sprintf("client {\n  host_volume \"berth-configs\" {\n    path = %q\n  }\n}\n", dir)
}

// What one orchestrator was told the other knows, and the one after it.
func outlived(t *testing.T, a *nomadtest.Agent, dir string, with ...string) {
	t.Helper()
	const first, second = secret, "correct horse"
	k := &kept{t: t, Agent: a}
	with = append(with, small()...)
	said, status := berth(t, k.Agent, append([]string{"deploy", "orchestrator", "--config-volume", "nobodys"}, with...)...)
	assert.Equal(t, 1, status, said)
	assert.Contains(t, said, "no machine of these datacenters and this node pool has a host volume nobodys")

	k.deploy(append(with, "--config-volume", "berth-configs")...)
	all, addresses := k.tenants(1)
	c, err := all[0].DefaultSandbox(t.Context(), poolapi.SandboxIsolated)
	require.NoError(t, err)
	put := func(o client.Organization, value string) {
		_, err := o.PutVariable(t.Context(), c.ID, poolapi.EnvironmentVariableRequest{Key: "K", Value: value})
		require.NoError(t, err, "the deploy has made a key")
	}
	put(all[0], first)

	k.deploy("--orchestrators", "2")
	all, _ = k.tenants(2)
	for i, value := range []string{first, second} {
		k.knows(all[0], value)
		k.knows(all[1], value)
		put(all[1-i], second)
	}
	k.deploy("--orchestrators", "1", "--serve", "idle-after=9m") // an upgrade, by a canary beside them
	all, addresses = k.tenants(1, addresses...)
	k.knows(all[0], second)

	k.stop()
	all, _ = k.tenants(1, addresses...)
	k.knows(all[0], second)
	k.volumeHoldsNoSecret(dir, first, second)
	k.resealed(program(t, "orchestrator"))
}

// resealed changes the key as the guide says.
func (k *kept) resealed(program string) {
	k.t.Helper()
	path := jobs.VariablePath(jobs.OrchestratorJob)
	_, before := k.tenants(1)
	set := func(change func(was string) string) {
		k.t.Helper()
		v, _, err := k.Client.Variables().Read(path, nil)
		require.NoError(k.t, err)
		v.Items[jobs.ConfigKeys] = change(v.Items[jobs.ConfigKeys])
		_, _, err = k.Client.Variables().Update(v, nil)
		require.NoError(k.t, err)
	}
	fresh := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	set(func(was string) string { return fresh + "\n" + was })
	var said []byte
	require.Eventually(k.t, func() bool { // when it has been started again
		said, _ = k.Command("alloc", "exec", "-job", jobs.OrchestratorJob, program, "reseal").CombinedOutput()
		return strings.Contains(string(said), "1 values sealed anew")
	}, patience, time.Second, "%s", said)
	set(func(string) string { return fresh })
	k.stop()
	all, _ := k.tenants(1, before...)
	k.knows(all[0], "correct horse")
}

// shared is the short way where the driver mounts the volume: two orchestrators
// that begin at once, and the two that come in their places.
func shared(t *testing.T, a *nomadtest.Agent, with ...string) *kept {
	t.Helper()
	k := &kept{t: t, Agent: a}
	k.deploy(append(with, append(small(), "--config-volume", "berth-configs", "--orchestrators", "2")...)...)
	all, addresses := k.tenants(2)
	c, err := all[0].DefaultSandbox(t.Context(), poolapi.SandboxIsolated)
	require.NoError(t, err)
	_, err = all[0].PutVariable(t.Context(), c.ID, poolapi.EnvironmentVariableRequest{Key: "K", Value: secret})
	require.NoError(t, err)
	k.knows(all[1], secret)
	k.stop()
	all, _ = k.tenants(2, addresses...)
	k.knows(all[0], secret)
	k.knows(all[1], secret)
	return k
}

// secret is what must not be on a volume as it is.
const secret = "hunter2-hunter2"

// small are the flags of an orchestrator whose pool needs no container.
func small() []string {
	return []string{"--count", "0", "--serve", "max-containers=1", "--slots", "1", "--cpu", "100", "--memory", "128", "--disk", "50", "--isolation-require", "none"}
}

// stop has Nomad place anew what runs.
func (k *kept) stop() {
	k.t.Helper()
	running, _, err := k.Client.Jobs().Allocations(jobs.OrchestratorJob, false, nil)
	require.NoError(k.t, err)
	for _, one := range running {
		if one.ClientStatus == api.AllocClientStatusRunning {
			_, err = k.Client.Allocations().Stop(&api.Allocation{ID: one.ID}, nil)
			require.NoError(k.t, err)
		}
	}
}

// volumeHoldsNoSecret looks for the values, and for the key that opens them.
func (k *kept) volumeHoldsNoSecret(dir string, values ...string) {
	k.t.Helper()
	v, _, err := k.Client.Variables().Read(jobs.VariablePath(jobs.OrchestratorJob), nil)
	require.NoError(k.t, err)
	key, err := base64.StdEncoding.DecodeString(v.Items[jobs.ConfigKeys])
	require.NoError(k.t, err)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(k.t, err)
	require.NotEmpty(k.t, files)
	for _, name := range files {
		assert.Regexp(k.t, `/config\.db(-wal|-shm)?$`, name)
		text, err := os.ReadFile(name)
		require.NoError(k.t, err)
		for _, secret := range append(values, string(key), v.Items[jobs.ConfigKeys]) {
			assert.NotContains(k.t, string(text), secret, name)
		}
	}
}

func TestConfigurationsOutliveTheOrchestratorOnAVolume(t *testing.T) {
	t.Parallel()
	nomadtest.Program(t)
	dir := sandboxtest.DataDir(t)
	a := nomadtest.Start(t, nomadtest.Config{Extra: volumeClient(dir)})
	outlived(t, a, dir, "--driver", "raw_exec", "--sandboxd", sandboxtest.Agent(t), "--orchestrator", program(t, "orchestrator"), "--serve", "config-db="+filepath.Join(dir, "config.db"))
}

func TestConfigurationsOutliveTheOrchestratorOnAMountedVolume(t *testing.T) {
	t.Parallel()
	nomadtest.Program(t)
	dir := sandboxtest.DataDir(t)
	require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // the driver runs it as nobody
	extra := strings.Replace(execClient(t), "chroot_env {\n", fmt.Sprintf("chroot_env {\n    %q = \"/usr/local/bin/orchestrator\"\n", program(t, "orchestrator")), 1)
	a := nomadtest.Start(t, nomadtest.Config{Extra: volumeClient(dir) + extra})
	needExec(t, a)
	shared(t, a, "--driver", "exec").volumeHoldsNoSecret(dir, secret)
}

func TestConfigurationsOutliveTheOrchestratorInDocker(t *testing.T) {
	t.Parallel()
	nomadtest.Program(t)
	tag, bridge := orchestratorImage(t, dockertest.Need(t), "orchestrator")
	dir := sandboxtest.DataDir(t)
	require.NoError(t, os.Chown(dir, 65532, 65532))
	require.NoError(t, os.Chmod(dir, 0o700)) //nolint:gosec // its owner alone
	a := nomadtest.Start(t, nomadtest.Config{Driver: string(jobs.Docker), Network: bridge, Extra: volumeClient(dir) + dockerClient(t)})
	shared(t, a, "--orchestrator", "berth/orchestrator:"+tag).volumeHoldsNoSecret(dir, secret)
}
