package orchestrator

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth/orchestrator/backend/nomad"
	"berth/orchestrator/pool"
)

// Config is everything that can be set about an orchestrator. Help lists the
// names, defaults and meanings.
type Config struct {
	Listen            string
	TokenFile         string
	OperatorTokenFile string
	BoundTokenFile    string // of tokens that are bound to organizations
	MetricsTokenFile  string
	InsecureNoAuth    bool
	MaxBody           int64
	MaxConns          int

	Backend      string       // local or nomad
	Nomad        nomad.Config // of the nomad backend, as far as there are settings of it
	DataDir      string
	ConfigDB     string   // of sandbox configs; Parse fills it in
	ConfigKeys   string   // file of the keys that seal their variables
	ConfigPlain  bool     // without one, store them as they are
	Sandboxd     string   // program of the local backend's containers
	SandboxdArgs []string // more of its flags
	Keep         bool
	LocalSlots   int // of local sandboxes

	Templates []pool.Template // the first is what trajectories without a lease get

	TrajectoryIdle time.Duration
	TrajectoryWait time.Duration
	DrainTimeout   time.Duration

	LogLevel string
	LogJSON  bool
}

// ErrUsage is a command line, environment or file that cannot be used.
var ErrUsage = errors.New("usage")

// ErrImpossible is a Config that cannot work here, however often it is tried:
// a file or program that it names is missing or not as it has to be, the
// machine does not give the isolation that it requires, or Nomad does not let it
// ask.
var ErrImpossible = errors.New("impossible configuration")

// ErrHelp asks for help, which has been written.
var ErrHelp = errors.New("help asked for")

// prefix is what the names of our environment variables begin with.
const prefix = "ORCHESTRATOR_"

// defaultPids are the processes and threads of a slot where none are said, as in
// the job of a pool and in sandboxd.
const defaultPids = 512

// envName is the environment variable of a setting.
func envName(name string) string { return prefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// Parse reads the settings: defaults, then the file that --config or
// ORCHESTRATOR_CONFIG names, then ORCHESTRATOR_ variables of environ, then
// args. Help goes to out. Errors wrap ErrUsage or are ErrHelp.
func Parse(args, environ []string, out io.Writer) (Config, error) {
	c, main := Config{}, pool.Template{}
	flags, file := settings(&c, &main)
	// The file comes first and is named last, so the arguments are read twice.
	trial, named := settings(&Config{}, &pool.Template{})
	err := errors.Join(fromEnvironment(trial, environ), trial.Parse(args))
	if errors.Is(err, flag.ErrHelp) {
		writeHelp(out, flags)
		return Config{}, ErrHelp
	}
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if *named != "" {
		if err := fromFile(flags, &c, *named); err != nil {
			return Config{}, fmt.Errorf("%w: read %s: %w", ErrUsage, *named, err)
		}
	}
	err = errors.Join(fromEnvironment(flags, environ), flags.Parse(args))
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	*file = *named
	if err == nil {
		c.Templates = append([]pool.Template{main}, c.Templates...)
		err = c.check()
	}
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	return c, nil
}

// settings makes the flags of a Config, whose main template is apart. They
// hold the defaults. file is the value of --config.
func settings(c *Config, main *pool.Template) (flags *flag.FlagSet, file *string) {
	flags = flag.NewFlagSet("orchestrator serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file = flags.String("config", "", "file of settings, in YAML or JSON: the names of the flags without the dashes before them")
	flags.StringVar(&c.Listen, "listen", "127.0.0.1:9001", "address to serve on")
	flags.StringVar(&c.TokenFile, "token-file", "", "file that holds the bearer token of trainers; nobody else may be able to read it")
	flags.StringVar(&c.OperatorTokenFile, "operator-token-file", "", "file that holds the bearer token of operators; without it trainers are operators")
	flags.StringVar(&c.BoundTokenFile, "organization-token-file", "", "file of further tokens, each for the function tools of certain organizations alone: on each line the organizations with commas between them, a space, the token; nobody else may be able to read it")
	flags.StringVar(&c.MetricsTokenFile, "metrics-token-file", "", "file that holds one more token, which opens /metrics and nothing else; empty: there is none; nobody else may be able to read it")
	flags.BoolVar(&c.InsecureNoAuth, "insecure-no-auth", false, "serve other addresses than loopback without a token")
	add(flags, size{&c.MaxBody}, "max-body", "64MiB", "largest JSON request")
	add(flags, integer{&c.MaxConns, 1, 1 << 20}, "max-connections", "8192", "connections that are served at once; further ones wait")
	add(flags, word{&c.Backend, []string{backendLocal, backendNomad}}, "backend", backendLocal, "what runs the containers: local, as processes; nomad, as allocations")
	flags.StringVar(&c.DataDir, "data-dir", defaultDirectory(), "where everything of the containers is; slots pass through what is above it")
	flags.StringVar(&c.ConfigDB, "config-db", "", "SQLite `file` of sandbox configs and organizations, in a directory that is there; orchestrators of one machine may share it; without it config/config.db below --data-dir")
	flags.StringVar(&c.ConfigKeys, "config-key-file", "", "file of the keys that seal the variables of sandbox configs: one a line, 32 bytes in base64, the first seals; empty: there is none; nobody else may be able to read it")
	flags.BoolVar(&c.ConfigPlain, "config-plaintext", false, "without --config-key-file, store variables of sandbox configs unsealed instead of refusing them")
	flags.StringVar(&c.Sandboxd, "sandboxd", "", "sandboxd to run; without it the one beside this program, else the one in PATH; on the machines of Nomad /usr/local/bin/sandboxd")
	flags.Var(list{&c.SandboxdArgs}, "sandboxd-arg", "one more argument of sandboxd serve; may be repeated")
	flags.BoolVar(&c.Keep, "keep", false, "leave the containers running at the end; the next start finds them")
	add(flags, integer{&c.LocalSlots, 0, 2000}, "local-slots", "8", "slots on this machine for the function tools of each privileged organization, in a container of its own that is started when it is first needed; 0: none")
	nomadSettings(flags, &c.Nomad)
	templateSettings(flags, main)
	add(flags, duration{&c.TrajectoryIdle}, "trajectory-idle", "30m", "how long a trajectory without lease of its own keeps its slot without calling")
	add(flags, duration{&c.TrajectoryWait}, "trajectory-wait", "5m", "how long the first call of a trajectory waits for a slot")
	add(flags, duration{&c.DrainTimeout}, "drain-timeout", "30s", "how long running calls may take to end after SIGTERM")
	add(flags, word{&c.LogLevel, []string{"trace", "debug", "info", "warn", "error"}}, "log-level", "info", "trace debug info warn error")
	flags.BoolVar(&c.LogJSON, "log-json", false, "log in JSON")
	return flags, file
}

// templateSettings makes the flags of a template.
func templateSettings(flags *flag.FlagSet, t *pool.Template) {
	flags.StringVar(&t.Name, "template", "default", "name of the pool")
	add(flags, integer{&t.MinContainers, 0, 1 << 16}, "containers", "2", "containers to keep running at least")
	add(flags, integer{&t.MaxContainers, 0, 1 << 16}, "max-containers", "0", "containers to run at most, without those on machines that Nomad does not hear of; 0: as many as --containers")
	add(flags, integer{&t.Slots, 1, 2000}, "slots", "8", "slots of each container")
	add(flags, integer{&t.FreeMargin, 0, 1 << 20}, "free-slots", "0", "slots that should be free for those who come next")
	add(flags, duration{&t.IdleAfter}, "idle-after", "5m", "how long a container is empty before it may be stopped")
	add(flags, duration{&t.ShrinkCooldown}, "shrink-cooldown", "1m", "how long after containers were started or stopped no empty one is stopped")
	add(flags, duration{&t.TTL}, "lease-ttl", "5m", "how long a lease lasts that names no ttl_s")
	flags.StringVar(&t.Isolation, "isolation-require", "", "least isolation to accept, as sandboxd takes it")
	add(flags, onOff{&t.Network}, "network", "on", "on: slots share the machine's network; off: loopback only")
	flags.Var(variables{&t.Env}, "env", "K=V for every process of a slot; may be repeated")
	add(flags, duration{&t.MaxTimeout}, "max-timeout", "1h", "longest timeout that a call may name")
	add(flags, size{&t.Limits.MemoryBytes}, "memory", "0", "memory of one slot; 0: no limit")
	add(flags, size{&t.Limits.Pids}, "pids", strconv.Itoa(defaultPids), "processes and threads of one slot; 0: 512")
	add(flags, number{&t.Limits.CPUs}, "cpus", "0", "CPUs of one slot; 0: no limit")
	add(flags, size{&t.Limits.DiskBytes}, "disk", "0", "disk space of one slot; 0: no limit")
}

func defaultDirectory() string {
	if os.Geteuid() == 0 {
		return "/var/lib/berth/orchestrator"
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "berth", "orchestrator")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("berth-orchestrator-%d", os.Geteuid()))
}

// check refuses what no single setting can see, and fills in what follows from
// others.
func (c *Config) check() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen %q: %w", c.Listen, err)
	}
	if c.TokenFile == "" && !c.InsecureNoAuth && !isLoopback(host) {
		return fmt.Errorf("listen %q: without --token-file only loopback is served; --insecure-no-auth overrides", c.Listen)
	}
	if c.TokenFile == "" && c.OperatorTokenFile != "" {
		return errors.New("operator-token-file: needs --token-file")
	}
	if c.TokenFile == "" && c.BoundTokenFile != "" {
		return errors.New("organization-token-file: needs --token-file, without which nobody is asked for a token")
	}
	if c.TokenFile == "" && c.MetricsTokenFile != "" {
		return errors.New("metrics-token-file: needs --token-file, without which nobody is asked for a token")
	}
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return fmt.Errorf("data-dir: %w", err)
	}
	if c.ConfigDB == "" {
		c.ConfigDB = c.ownConfigDB()
	}
	if c.ConfigPlain && c.ConfigKeys != "" {
		return errors.New("config-plaintext: there is --config-key-file, which seals")
	}
	names := map[string]bool{}
	for i := range c.Templates {
		t := &c.Templates[i]
		if t.MaxContainers == 0 {
			t.MaxContainers = t.MinContainers
		}
		if t.Limits.Pids == 0 { // as sandboxd and a deploy read it: to Nomad another number is another job
			t.Limits.Pids = defaultPids
		}
		if err := t.Check(); err != nil {
			return err
		}
		if names[t.Name] {
			return fmt.Errorf("template %q is there twice", t.Name)
		}
		names[t.Name] = true
	}
	if c.TrajectoryIdle < pool.MinTTL || c.TrajectoryIdle > pool.MaxTTL {
		return fmt.Errorf("trajectory-idle: want %v to %v, got %v", pool.MinTTL, pool.MaxTTL, c.TrajectoryIdle)
	}
	if c.TrajectoryWait > pool.DefaultMaxWait {
		return fmt.Errorf("trajectory-wait: want at most %v, got %v", pool.DefaultMaxWait, c.TrajectoryWait)
	}
	return c.checkNomad()
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
