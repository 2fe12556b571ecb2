package jobs

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/hashicorp/nomad/api"
)

// ConfigKeys is the item of the variable of the orchestrator's job that may be
// absent: the keys that seal the variables of function tools, one a line.
const ConfigKeys = "config_keys"

// How the orchestrator's job has the volume of KeepConfigs.
const (
	configVolume    = "configs" // its name there
	configDirectory = "/var/lib/berth/configs"
	configFile      = configDirectory + "/config.db"
	configSetting   = "ORCHESTRATOR_CONFIG_DB"
)

// volumePattern are names of volumes in which Nomad interpolates nothing.
var volumePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// KeepConfigs has the orchestrators keep the configurations of function tools
// in a file on the host volume of that name, so that they outlive allocations,
// and runs them only where it is. The file is OrchestratorFile's. The driver
// raw_exec mounts nothing, so there the orchestrator's own setting has to name
// the file in the volume's directory; elsewhere it may not.
func (f *File) KeepConfigs(volume string) error {
	if !volumePattern.MatchString(volume) {
		return fmt.Errorf("volume %.140q: want a letter or digit, then at most 127 of those and of . _ -", volume)
	}
	group := f.Job.TaskGroups[0]
	task := group.Tasks[0]
	switch named := task.Env[configSetting]; {
	case Driver(task.Driver) == RawExec:
		if named == "" {
			return errors.New("the driver raw_exec mounts no volume: say the file in its directory as well, by --serve config-db=/DIRECTORY/config.db")
		}
	case named != "" && named != configFile:
		return fmt.Errorf("the volume has the file of configurations, and config-db says it is %s: take that back by --serve config-db=", named)
	default:
		task.Env[configSetting] = configFile
		task.VolumeMounts = []*api.VolumeMount{{Volume: new(configVolume), Destination: new(configDirectory)}}
	}
	group.Volumes = map[string]*api.VolumeRequest{configVolume: {Name: configVolume, Type: "host", Source: volume}}
	f.Comments["group.volume"] = "Configurations of function tools are in a file there: they outlive the\nallocation, and whoever runs beside it or after it knows them. SQLite is for\nthe processes of one machine, so one machine has the volume."
	for i := range f.Variables {
		if f.Variables[i].Path == "group.count" {
			f.Variables[i].About = "how many serve the pool side by side; all calls of a trajectory go to the same one, and they share the configurations of function tools"
		}
	}
	return nil
}

// ConfigVolume is the host volume on which the orchestrators of the job keep
// configurations; "": there is none.
func ConfigVolume(orchestrator *api.Job) string {
	if request := orchestrator.TaskGroups[0].Volumes[configVolume]; request != nil {
		return request.Source
	}
	return ""
}

// OfVolume reports whether the variable of an orchestrator's environment, which
// has that value, is what KeepConfigs says.
func OfVolume(variable, value string) bool { return variable == configSetting && value == configFile }
