package jobs_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
)

const configDB = "ORCHESTRATOR_CONFIG_DB"

func TestConfigurationsAreKeptOnAVolume(t *testing.T) {
	for _, driver := range jobs.Drivers() {
		file, err := jobs.OrchestratorFile(jobs.Template{Job: "berth-p", Driver: driver})
		require.NoError(t, err)
		group := file.Job.TaskGroups[0]
		one := group.Tasks[0]
		assert.NotContains(t, one.Env, configDB)
		assert.Empty(t, jobs.ConfigVolume(file.Job))
		for _, name := range []string{"", "a b", "${attr.x}", "/srv", "-x"} {
			require.Error(t, file.KeepConfigs(name), name)
		}
		mounted := true
		if driver == jobs.RawExec { // which would not start with a mount
			require.ErrorContains(t, file.KeepConfigs("v"), "--serve config-db=")
			one.Env[configDB], mounted = "/srv/configs/config.db", false
		}
		require.NoError(t, file.KeepConfigs("v"), driver)
		assert.Equal(t, "v", jobs.ConfigVolume(file.Job))
		assert.Equal(t, "host", group.Volumes["configs"].Type)
		require.Equal(t, mounted, len(one.VolumeMounts) == 1, driver)
		if mounted {
			assert.Equal(t, *one.VolumeMounts[0].Destination+"/config.db", one.Env[configDB])
		}
		assert.Equal(t, mounted, jobs.OfVolume(configDB, one.Env[configDB]))

		if mounted {
			one.Env[configDB] = "/elsewhere/config.db"
			require.ErrorContains(t, file.KeepConfigs("v"), "/elsewhere/config.db")
		}
	}
}

// The key is never where the values are that it opens.
func TestTheKeyOfConfigurationsIsASecretOfTheTask(t *testing.T) {
	for name, template := range templates() {
		job, err := jobs.Orchestrator(template)
		require.NoError(t, err)
		one := job.TaskGroups[0].Tasks[0]
		assert.Equal(t, "${NOMAD_SECRETS_DIR}/config-keys", one.Env["ORCHESTRATOR_CONFIG_KEY_FILE"], name)
		key, token := one.Templates[2], one.Templates[0]
		assert.Equal(t, "secrets/config-keys", *key.DestPath)
		assert.Contains(t, *key.EmbeddedTmpl, "."+jobs.ConfigKeys+".Value")
		assert.Equal(t, []any{token.ChangeMode, token.Perms, token.Uid, token.Gid}, []any{key.ChangeMode, key.Perms, key.Uid, key.Gid}, name)
	}
}
