package jobs

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/slots"
)

// setting is one setting of the orchestrator that the job of its pool is made
// of: how it reads, "" for what is not to be named, and back.
type setting struct {
	name string
	get  func(t *Template) string
	set  func(t *Template, text string) error
}

// templateName is what the orchestrator makes a job's name of: see the nomad
// backend.
var templateName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// settings are all of them. What they leave out of a Template are namespace
// and region, which Nomad itself tells its tasks, and the meta.
func settings() []setting {
	return []setting{
		{
			"ORCHESTRATOR_TEMPLATE",
			func(t *Template) string { return strings.TrimPrefix(t.Job, PoolPrefix) },
			func(t *Template, text string) error { t.Job = PoolPrefix + text; return nil },
		},
		{
			"ORCHESTRATOR_CONTAINERS",
			func(t *Template) string { return strconv.Itoa(t.Count) },
			func(t *Template, text string) (err error) { t.Count, err = strconv.Atoi(text); return err },
		},
		{
			"ORCHESTRATOR_NETWORK",
			func(t *Template) string { return map[bool]string{true: "off", false: "on"}[t.NoNetwork] },
			func(t *Template, text string) error { t.NoNetwork = text == "off"; return nil },
		},
		{
			"ORCHESTRATOR_NOMAD_WRITABLE",
			func(t *Template) string { return map[bool]string{true: "true"}[t.Writable] },
			func(t *Template, text string) (err error) { t.Writable, err = strconv.ParseBool(text); return err },
		},
		{
			"ORCHESTRATOR_CPUS",
			func(t *Template) string {
				if t.SlotCPUs == 0 {
					return ""
				}
				return strconv.FormatFloat(t.SlotCPUs, 'f', -1, 64)
			},
			func(t *Template, text string) (err error) { t.SlotCPUs, err = strconv.ParseFloat(text, 64); return err },
		},
		whole("ORCHESTRATOR_SLOTS", func(t *Template) *int { return &t.Slots }),
		words("ORCHESTRATOR_ISOLATION_REQUIRE", func(t *Template) *string { return &t.Isolation }),
		times("ORCHESTRATOR_MAX_TIMEOUT", func(t *Template) *time.Duration { return &t.Longest }),
		size("ORCHESTRATOR_MEMORY", func(t *Template) *int64 { return &t.SlotMemory }),
		size("ORCHESTRATOR_PIDS", func(t *Template) *int64 { return &t.SlotPids }),
		size("ORCHESTRATOR_DISK", func(t *Template) *int64 { return &t.SlotDisk }),
		words("ORCHESTRATOR_SANDBOXD", func(t *Template) *string { return &t.Command }),
		lines("ORCHESTRATOR_SANDBOXD_ARG", func(t *Template) *[]string { return &t.Args }),
		words("ORCHESTRATOR_NOMAD_DRIVER", func(t *Template) *string { return (*string)(&t.Driver) }),
		words("ORCHESTRATOR_NOMAD_IMAGE", func(t *Template) *string { return &t.Image }),
		words("ORCHESTRATOR_NOMAD_RUNTIME", func(t *Template) *string { return &t.Runtime }),
		words("ORCHESTRATOR_NOMAD_SECCOMP", func(t *Template) *string { return &t.Seccomp }),
		words("ORCHESTRATOR_NOMAD_NODE_POOL", func(t *Template) *string { return &t.NodePool }),
		lines("ORCHESTRATOR_NOMAD_DATACENTER", func(t *Template) *[]string { return &t.Datacenters }),
		whole("ORCHESTRATOR_NOMAD_PRIORITY", func(t *Template) *int { return &t.Priority }),
		times("ORCHESTRATOR_NOMAD_DRAIN", func(t *Template) *time.Duration { return &t.Drain }),
		whole("ORCHESTRATOR_NOMAD_CORES", func(t *Template) *int { return &t.Cores }),
		whole("ORCHESTRATOR_NOMAD_CPU", func(t *Template) *int { return &t.CPU }),
		whole("ORCHESTRATOR_NOMAD_MEMORY", func(t *Template) *int { return &t.MemoryMB }),
		whole("ORCHESTRATOR_NOMAD_MEMORY_MAX", func(t *Template) *int { return &t.MemoryMaxMB }),
		whole("ORCHESTRATOR_NOMAD_DISK", func(t *Template) *int { return &t.DiskMB }),
	}
}

// poolEnvironment has the orchestrator register the job of the template, which
// has its defaults.
func poolEnvironment(t Template) (map[string]string, error) {
	name, ours := strings.CutPrefix(t.Job, PoolPrefix)
	if !ours || !templateName.MatchString(name) {
		return nil, fmt.Errorf("job %q: the orchestrator calls its pool's job %sTEMPLATE, with 1 to 40 letters, digits, - and _", t.Job, PoolPrefix)
	}
	if t.Driver == Docker { // what the driver takes no notice of is not said
		t.Command = ""
	} else {
		t.Image, t.Runtime, t.Seccomp, t.Writable = "", "", "", false
	}
	env := map[string]string{}
	for _, s := range settings() {
		if text := s.get(&t); text != "" {
			env[s.name] = text
		}
	}
	return env, nil
}

// OfPool reports whether the variable of an orchestrator's environment says
// something of its pool's job.
func OfPool(variable string) bool {
	return slices.ContainsFunc(settings(), func(s setting) bool { return s.name == variable })
}

// PoolOf is what the orchestrator of that environment makes its pool's job of:
// Orchestrator turned around. more are the variables that say nothing of it.
func PoolOf(env map[string]string) (t Template, more map[string]string, err error) {
	t = Template{Job: PoolPrefix + "default", Count: 2} // the orchestrator's defaults, where they are not ours
	more = maps.Clone(env)
	for _, s := range settings() {
		text, found := env[s.name]
		if !found {
			continue
		}
		if err := s.set(&t, text); err != nil {
			return Template{}, nil, fmt.Errorf("%s: %w", s.name, err)
		}
		delete(more, s.name)
	}
	t, err = t.Complete()
	return t, more, err
}

func words(name string, at func(*Template) *string) setting {
	return setting{
		name: name,
		get:  func(t *Template) string { return *at(t) },
		set:  func(t *Template, text string) error { *at(t) = text; return nil },
	}
}

func lines(name string, at func(*Template) *[]string) setting {
	return setting{
		name: name,
		get:  func(t *Template) string { return strings.Join(*at(t), "\n") },
		set: func(t *Template, text string) error {
			*at(t) = strings.Split(strings.Trim(text, "\n"), "\n")
			return nil
		},
	}
}

func whole(name string, at func(*Template) *int) setting {
	return numeric(name, at, strconv.Atoi)
}

func size(name string, at func(*Template) *int64) setting {
	return numeric(name, at, slots.ParseSize)
}

// numeric is a number, of which 0 is not to be named.
func numeric[T int | int64](name string, at func(*Template) *T, parse func(string) (T, error)) setting {
	return setting{
		name: name,
		get: func(t *Template) string {
			if *at(t) == 0 {
				return ""
			}
			return strconv.FormatInt(int64(*at(t)), 10)
		},
		set: func(t *Template, text string) (err error) { *at(t), err = parse(text); return err },
	}
}

func times(name string, at func(*Template) *time.Duration) setting {
	return setting{
		name: name,
		get:  func(t *Template) string { return seconds(*at(t)) },
		set:  func(t *Template, text string) (err error) { *at(t), err = slots.ParseDuration(text); return err },
	}
}
