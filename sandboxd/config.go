package sandboxd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/slots"
	"berth/slots/sandbox"
)

// Config is everything that can be set about an agent. Settings lists the
// names, defaults and meanings.
type Config struct {
	Listen         string
	Slots          int
	DataDir        string
	TokenFile      string
	TokenGrace     time.Duration
	InsecureNoAuth bool

	MetricsTokenFile string

	Attempt slots.Level
	Require slots.Requirement
	Network bool
	Private bool // --root private
	Hide    []string

	DefaultTimeout time.Duration
	MaxTimeout     time.Duration
	DrainTimeout   time.Duration
	DrainLeases    bool // SIGTERM waits for leases as well
	Limits         slots.Limits
	Disk           sandbox.DiskBackend
	OutputLimit    int64
	SpillMax       int64
	Env            []string
	FirstUID       int
	Cgroups        bool

	Home                 string
	EnvironmentsMaxSize  int64
	EnvironmentsTimeout  time.Duration
	EnvironmentsPackages []string

	Keep      time.Duration
	KeepBytes int64
	MaxConns  int

	LogLevel string
	LogJSON  bool
}

// setting is one thing that can be set: by --name, or by SANDBOXD_NAME.
type setting struct {
	name, value, usage string // value is the default as text
	set                func(c *Config, text string) error
}

// envName is the environment variable of a setting.
func envName(name string) string {
	return "SANDBOXD_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// settings is the whole table, in the order of --help, which is also the one
// in which they are set: --host and --port come after --listen.
func settings(environ []string) []setting {
	return []setting{
		{"listen", "127.0.0.1:8080", "address to serve on", text(func(c *Config) *string { return &c.Listen })},
		{"host", "", "host to serve on, instead of --listen's", setHost},
		{"port", "", "port to serve on, instead of --listen's", setPort},
		{"slots", "10", "number of slots", integer(func(c *Config) *int { return &c.Slots }, 1, 2000)},
		{"data-dir", defaultDirectory(environ), "where workspaces, leases and the journal are; NOMAD_ALLOC_DIR, if set, is the default", text(func(c *Config) *string { return &c.DataDir })},
		{"token-file", "", "file that holds the bearer token; the agent alone may be able to read it. Where slots have the agent's user, they see nothing of the directory that it is in", text(func(c *Config) *string { return &c.TokenFile })},
		{"token-grace", "2m", "how long the token before stays good after SIGHUP, which has the file read again", duration(func(c *Config) *time.Duration { return &c.TokenGrace })},
		{"metrics-token-file", "", "file that holds one more token, which opens /metrics and nothing else; empty: there is none; read again as the other one is", text(func(c *Config) *string { return &c.MetricsTokenFile })},
		{"insecure-no-auth", "false", "serve other addresses than loopback without a token", boolean(func(c *Config) *bool { return &c.InsecureNoAuth })},
		{"isolation-attempt", "ns+cgroup", "strongest isolation level to try: none basic landlock uid uid+landlock ns ns+cgroup", setAttempt},
		{"isolation-require", "landlock", "least isolation to accept: a level and axes, as uid+landlock,net=loopback-only", setRequire},
		{"network", "on", "on: slots share the container's network without the agent's port, and may serve on the free ports of others; off: loopback only", onOff(func(c *Config) *bool { return &c.Network }, "on", "off")},
		{"root", "shared", "shared: the container's files, read-only; private: a root of its own to write to, which vanishes with the slot", onOff(func(c *Config) *bool { return &c.Private }, "private", "shared")},
		{"hide", "", "absolute path that slots must not see; may be repeated; a file that its owner alone may read is hidden as --token-file is", list(func(c *Config) *[]string { return &c.Hide }, filepath.IsAbs, "an absolute path")},
		{"home", "", "absolute path of a directory that all slots see and may write to, and that outlives them: for slots of one owner; functions run in it", text(func(c *Config) *string { return &c.Home })},
		{"default-timeout", "30s", "timeout of a call that names none", duration(func(c *Config) *time.Duration { return &c.DefaultTimeout })},
		{"max-timeout", "3600s", "longest timeout that a call may name", duration(func(c *Config) *time.Duration { return &c.MaxTimeout })},
		{"drain-timeout", "30s", "how long running calls may take to end after SIGTERM", duration(func(c *Config) *time.Duration { return &c.DrainTimeout })},
		{"drain-leases", "off", "on: leased slots are served on for as long, until their leases end; off: leases go on with the next start on the same --data-dir", onOff(func(c *Config) *bool { return &c.DrainLeases }, "on", "off")},
		{"memory", "0", "memory of one slot; 0: no limit (needs cgroups)", size(func(c *Config) *int64 { return &c.Limits.MemoryBytes })},
		{"pids", "512", "processes and threads of one slot", size(func(c *Config) *int64 { return &c.Limits.Pids })},
		{"cpus", "0", "CPUs of one slot; 0: no limit (needs cgroups)", number(func(c *Config) *float64 { return &c.Limits.CPUs })},
		{"disk", "0", "disk space of one slot; 0: no limit", size(func(c *Config) *int64 { return &c.Limits.DiskBytes })},
		{"disk-files", "0", "files of one slot; 0: no limit", size(func(c *Config) *int64 { return &c.Limits.DiskFiles })},
		{"disk-backend", "auto", "what holds slots to --disk and --disk-files: auto (quota where it works, else watcher) quota tmpfs watcher; tmpfs counts in --memory", setDisk},
		{"file-size", "0", "largest file of one slot; 0: no limit", size(func(c *Config) *int64 { return &c.Limits.FileBytes })},
		{"shm", "64MiB", "size of a slot's /dev/shm", size(func(c *Config) *int64 { return &c.Limits.ShmBytes })},
		{"open-files", "4096", "open files of one process", size(func(c *Config) *int64 { return &c.Limits.OpenFiles })},
		{"address-space", "0", "address space of one process; 0: no limit", size(func(c *Config) *int64 { return &c.Limits.AddressBytes })},
		{"output-limit", "0", "bytes of one output stream after which a command is killed; 0: no limit", size(func(c *Config) *int64 { return &c.OutputLimit })},
		{"spill-max", "64MiB", "bytes of one output stream that are kept in a file", size(func(c *Config) *int64 { return &c.SpillMax })},
		{"env", "", "K=V for every process of a slot; may be repeated", list(func(c *Config) *[]string { return &c.Env }, isAssignment, "NAME=value")},
		{"first-uid", "61000", "first uid and gid that slots use", integer(func(c *Config) *int { return &c.FirstUID }, 1, 1<<31-1)},
		{"cgroups", "on", "on: a cgroup per slot where one can be written; off: none", onOff(func(c *Config) *bool { return &c.Cgroups }, "on", "off")},
		{"environments-max-size", "10GiB", "disk space of all environments of function tools together; those longest unused go", size(func(c *Config) *int64 { return &c.EnvironmentsMaxSize })},
		{"environments-timeout", "10m", "how long the building of one environment may take", duration(func(c *Config) *time.Duration { return &c.EnvironmentsTimeout })},
		{"environments-packages", "", "absolute path of a directory of wheels or npm tarballs that environments may be built from; may be repeated", list(func(c *Config) *[]string { return &c.EnvironmentsPackages }, filepath.IsAbs, "an absolute path")},
		{"keep", "10m", "how long results are kept for duplicates", duration(func(c *Config) *time.Duration { return &c.Keep })},
		{"keep-bytes", "64MiB", "how many bytes of results are kept", size(func(c *Config) *int64 { return &c.KeepBytes })},
		{"max-connections", "1024", "connections that are served at once", integer(func(c *Config) *int { return &c.MaxConns }, 1, 1<<20)},
		{"log-level", "info", "trace debug info warn error", oneOf(func(c *Config) *string { return &c.LogLevel }, "trace", "debug", "info", "warn", "error")},
		{"log-json", "false", "log in JSON", boolean(func(c *Config) *bool { return &c.LogJSON })},
	}
}

func defaultDirectory(environ []string) string {
	for _, kv := range environ {
		if dir, ok := strings.CutPrefix(kv, "NOMAD_ALLOC_DIR="); ok && dir != "" {
			return dir
		}
	}
	if os.Geteuid() == 0 {
		return "/var/lib/berth"
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "berth")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("berth-%d", os.Geteuid()))
}

// leastAddressSpace is what a holder, a Go program, starts in with certainty.
const leastAddressSpace = 2 << 30

// check refuses what no single setting can see.
func (c *Config) check() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen %q: %w", c.Listen, err)
	}
	if c.TokenFile == "" && !c.InsecureNoAuth && !isLoopback(host) {
		return fmt.Errorf("listen %q: without --token-file only loopback is served; --insecure-no-auth overrides", c.Listen)
	}
	if c.TokenFile == "" && c.MetricsTokenFile != "" {
		return errors.New("metrics-token-file: needs --token-file, without which nobody is asked for a token")
	}
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return fmt.Errorf("data-dir: %w", err)
	}
	c.DataDir = withoutLinks(c.DataDir)
	for _, path := range []*string{&c.TokenFile, &c.MetricsTokenFile} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("token-file: %w", err)
		}
	}
	if c.Limits.AddressBytes > 0 && c.Limits.AddressBytes < leastAddressSpace {
		return fmt.Errorf("address-space: want 0 or at least %d: the slot's own holder takes more than half of that", int64(leastAddressSpace))
	}
	limited := c.Limits.DiskBytes > 0 || c.Limits.DiskFiles > 0
	if c.Disk != sandbox.DiskAuto && !limited {
		return fmt.Errorf("disk-backend: %s has nothing to hold: set disk or disk-files", c.Disk)
	}
	if c.Disk == sandbox.DiskTmpfs {
		if c.Limits.DiskBytes == 0 {
			return errors.New("disk-backend: tmpfs wants disk: it takes memory up to there")
		}
		if c.Limits.MemoryBytes > 0 && c.Limits.DiskBytes >= c.Limits.MemoryBytes {
			return errors.New("disk-backend: tmpfs wants disk below memory: a slot's files count there, and would end its processes before they are refused")
		}
	}
	if err := errors.Join(c.checkEnvironments(), c.checkHome()); err != nil {
		return err
	}
	if c.DefaultTimeout > c.MaxTimeout {
		c.DefaultTimeout = c.MaxTimeout
	}
	return nil
}

// withoutLinks is where path leads, of which the end may not be there yet: what
// hides it from slots goes by the names that the kernel knows.
func withoutLinks(path string) string {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		return at
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(withoutLinks(parent), filepath.Base(path))
	}
	return path
}

// tokenFiles are the paths of those that there are.
func (c *Config) tokenFiles() []string {
	return slices.DeleteFunc([]string{c.TokenFile, c.MetricsTokenFile}, func(path string) bool { return path == "" })
}

// leastEnvironments is less than any environment takes.
const leastEnvironments = 1 << 20

// checkEnvironments refuses to show builds what no slot may see, and what is
// not there: they run code of others.
func (c *Config) checkEnvironments() error {
	if c.EnvironmentsMaxSize < leastEnvironments {
		return fmt.Errorf("environments-max-size: want at least %d", leastEnvironments)
	}
	secret := slices.Concat([]string{c.DataDir}, c.Hide, c.tokenFiles())
	for i, dir := range c.EnvironmentsPackages {
		dir = filepath.Clean(dir)
		c.EnvironmentsPackages[i] = dir
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return fmt.Errorf("environments-packages: %s is no directory", dir)
		}
		for _, at := range secret {
			if at = filepath.Clean(at); within(at, dir) || within(dir, at) {
				return fmt.Errorf("environments-packages: %s would show builds what slots must not see: %s", dir, at)
			}
		}
	}
	return nil
}

// checkHome refuses a home that slots must not see, or that a slot's root would
// be root in.
func (c *Config) checkHome() error {
	if c.Home == "" {
		return nil
	}
	if !filepath.IsAbs(c.Home) {
		return fmt.Errorf("home: want an absolute path, got %q", c.Home)
	}
	c.Home = filepath.Clean(c.Home)
	if c.Private {
		return errors.New("home: not with a private root, which would be root there")
	}
	if within(c.Home, c.DataDir) || within(c.DataDir, c.Home) {
		return fmt.Errorf("home: %s would show slots what they must not see: %s", c.Home, c.DataDir)
	}
	return nil
}

// within reports whether path is dir or lies in it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func isAssignment(s string) bool {
	name, _, ok := strings.Cut(s, "=")
	return ok && name != "" && !strings.Contains(s, "\x00")
}

func setHost(c *Config, host string) error {
	_, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return err
	}
	c.Listen = net.JoinHostPort(host, port)
	return nil
}

func setPort(c *Config, port string) error {
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return errors.New("want a port number")
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return err
	}
	c.Listen = net.JoinHostPort(host, port)
	return nil
}

func setAttempt(c *Config, word string) (err error) {
	c.Attempt, err = slots.ParseLevel(word)
	return err
}

func setDisk(c *Config, word string) error {
	c.Disk = sandbox.DiskBackend(word)
	switch c.Disk {
	case "auto":
		c.Disk = sandbox.DiskAuto
	case sandbox.DiskQuota, sandbox.DiskTmpfs, sandbox.DiskWatcher:
	default:
		return errors.New("want one of auto quota tmpfs watcher")
	}
	return nil
}

func setRequire(c *Config, text string) (err error) {
	c.Require, err = slots.ParseRequirement(text)
	return err
}
