package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/orchestrator/backend"
)

// Config says how containers are run. Zero fields mean the defaults.
type Config struct {
	Dir    string   // where everything is; required. Others must be able to pass through what is above it
	Binary string   // the sandboxd to run; default: the one beside our own program, else the one in PATH
	Args   []string // further flags of "sandboxd serve", after ours
	Max    int      // how many containers there may be; 0: any number
	Keep   bool     // a Close leaves the containers running

	// Expect is what containers are going to be started of, their IDs apart. An
	// Open finds out whether this machine can isolate them as they require,
	// unless one of the template that is up proves it.
	Expect []backend.Spec

	Grace        time.Duration // how long running calls may take when a Close ends containers, and at most when a Stop does; default 30 s
	StartTimeout time.Duration // until a process is ready; default 60 s
	Look         time.Duration // between two looks at each process; default 200 ms
	LogBytes     int64         // a log longer than that is put aside at the next start; default 4 MiB
	Backoff      Backoff

	Logger hclog.Logger // default: none
}

// Backoff says how crashes are answered.
type Backoff struct {
	First   time.Duration // before the first restart, about; doubled for each in a row; default 200 ms
	Max     time.Duration // at most; default 30 s
	Healthy time.Duration // running that long ends a row of crashes; default 1 min
	Crashes int           // that many in a row and it is given up; default 6
}

// or returns v, or the default when v is not set.
func or[T time.Duration | int | int64](v, byDefault T) T {
	if v <= 0 {
		return byDefault
	}
	return v
}

// withDefaults checks the Config and fills it in.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("no directory")
	}
	var err error
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return c, fmt.Errorf("find directory: %w", err)
	}
	if c.Binary, err = findBinary(c.Binary); err != nil {
		return c, err
	}
	c.Grace = or(c.Grace, 30*time.Second)
	c.StartTimeout = or(c.StartTimeout, time.Minute)
	c.Look = or(c.Look, 200*time.Millisecond)
	c.LogBytes = or(c.LogBytes, 4<<20)
	c.Backoff = Backoff{
		First: or(c.Backoff.First, 200*time.Millisecond), Max: or(c.Backoff.Max, 30*time.Second),
		Healthy: or(c.Backoff.Healthy, time.Minute), Crashes: or(c.Backoff.Crashes, 6),
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Logger = c.Logger.Named("local")
	return c, nil
}

// findBinary returns the absolute path of the sandboxd to run.
func findBinary(told string) (string, error) {
	if told == "" {
		if own, err := os.Executable(); err == nil {
			told = filepath.Join(filepath.Dir(own), "sandboxd")
		}
		if _, err := os.Stat(told); err != nil {
			told = "sandboxd"
		}
	}
	path, err := exec.LookPath(told)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("find sandboxd: %w", err)
	}
	return path, nil
}

// environ is the environment of a sandboxd: nothing of ours but what programs
// need to run. What its slots get comes as a variable and not as a flag,
// because everybody may read the arguments of a process.
func environ(slotEnv map[string]string) []string {
	var out []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "TZ", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+value)
		}
	}
	if len(slotEnv) > 0 {
		lines := make([]string, 0, len(slotEnv))
		for name, value := range slotEnv {
			lines = append(lines, name+"="+value)
		}
		out = append(out, "SANDBOXD_ENV="+strings.Join(lines, "\n"))
	}
	return out
}
