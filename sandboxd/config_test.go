package sandboxd

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
)

func parse(args []string, environ ...string) (Config, error) {
	return Parse(args, environ, &bytes.Buffer{})
}

func TestParseGivesTheDocumentedDefaults(t *testing.T) {
	c, err := parse(nil, "NOMAD_ALLOC_DIR=/alloc/dir")
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:8080", c.Listen)
	assert.Equal(t, 10, c.Slots)
	assert.Equal(t, "/alloc/dir", c.DataDir)
	assert.Equal(t, slots.LevelNSCgroup, c.Attempt)
	assert.Equal(t, slots.LevelLandlock, c.Require.Level)
	assert.Equal(t, []time.Duration{30 * time.Second, time.Hour, 30 * time.Second, 10 * time.Minute}, []time.Duration{c.DefaultTimeout, c.MaxTimeout, c.DrainTimeout, c.Keep})
	assert.Equal(t, []int64{64 << 20, 64 << 20, 512}, []int64{c.SpillMax, c.KeepBytes, c.Limits.Pids})
	assert.True(t, c.Network)
	assert.True(t, c.Cgroups)
	assert.False(t, c.InsecureNoAuth || c.LogJSON || c.Private)
	c, err = parse([]string{"--data-dir", "/other"}, "NOMAD_ALLOC_DIR=/alloc/dir")
	require.NoError(t, err)
	assert.Equal(t, "/other", c.DataDir)
}

func TestParseTakesEveryFormOfASetting(t *testing.T) {
	for _, c := range []struct {
		args    []string
		environ []string
		of      func(Config) any
		value   any
	}{
		{[]string{"--slots", "7"}, nil, func(c Config) any { return c.Slots }, 7},
		{[]string{"-slots=7"}, []string{"SANDBOXD_SLOTS=3"}, func(c Config) any { return c.Slots }, 7},
		{nil, []string{"SANDBOXD_SLOTS=3", "OTHER=x", "SANDBOX=1"}, func(c Config) any { return c.Slots }, 3},
		{[]string{"--max-timeout", "90"}, nil, func(c Config) any { return c.MaxTimeout }, 90 * time.Second},
		{[]string{"--max-timeout", "1.5"}, nil, func(c Config) any { return c.MaxTimeout }, 1500 * time.Millisecond},
		{nil, []string{"SANDBOXD_MAX_TIMEOUT=2h"}, func(c Config) any { return c.MaxTimeout }, 2 * time.Hour},
		{[]string{"--max-timeout", "10s"}, nil, func(c Config) any { return c.DefaultTimeout }, 10 * time.Second},
		{[]string{"--memory", "2G"}, nil, func(c Config) any { return c.Limits.MemoryBytes }, int64(2 << 30)},
		{[]string{"--memory", "1500kB"}, nil, func(c Config) any { return c.Limits.MemoryBytes }, int64(1_500_000)},
		{[]string{"--disk-backend", "tmpfs", "--disk", "1G"}, nil, func(c Config) any { return c.Disk }, sandbox.DiskTmpfs},
		{[]string{"--disk-backend", "auto"}, nil, func(c Config) any { return c.Disk }, sandbox.DiskAuto},
		{[]string{"--cpus", "0.5"}, nil, func(c Config) any { return c.Limits.CPUs }, 0.5},
		{[]string{"--port", "0"}, nil, func(c Config) any { return c.Listen }, "127.0.0.1:0"},
		{[]string{"--host", "::1", "--port", "9"}, nil, func(c Config) any { return c.Listen }, "[::1]:9"},
		{[]string{"--port", "9", "--listen", "127.0.0.2:1"}, nil, func(c Config) any { return c.Listen }, "127.0.0.2:9"},
		{nil, []string{"SANDBOXD_HOST=127.0.0.3", "SANDBOXD_LISTEN=127.0.0.2:1", "SANDBOXD_PORT=5"}, func(c Config) any { return c.Listen }, "127.0.0.3:5"},
		{[]string{"--listen", "127.0.0.4:4"}, []string{"SANDBOXD_HOST=127.0.0.3", "SANDBOXD_PORT=5"}, func(c Config) any { return c.Listen }, "127.0.0.4:4"},
		{[]string{"--listen", "0.0.0.0:1", "--insecure-no-auth"}, nil, func(c Config) any { return c.InsecureNoAuth }, true},
		{[]string{"--listen", ":1", "--token-file", "/t"}, nil, func(c Config) any { return c.TokenFile }, "/t"},
		{[]string{"--token-file", "/t"}, []string{"SANDBOXD_METRICS_TOKEN_FILE=/m"}, func(c Config) any { return c.MetricsTokenFile }, "/m"},
		{[]string{"--listen", "localhost:1"}, nil, func(c Config) any { return c.Listen }, "localhost:1"},
		{[]string{"--log-json=false"}, []string{"SANDBOXD_LOG_JSON=true"}, func(c Config) any { return c.LogJSON }, false},
		{nil, []string{"SANDBOXD_LOG_JSON=1"}, func(c Config) any { return c.LogJSON }, true},
		{[]string{"--network", "off", "--cgroups", "off", "--root", "private"}, nil, func(c Config) any { return []bool{c.Network, c.Cgroups, c.Private} }, []bool{false, false, true}},
		{[]string{"--hide", "/a", "--hide", "/b"}, nil, func(c Config) any { return c.Hide }, []string{"/a", "/b"}},
		{nil, []string{"SANDBOXD_ENV=A=1\nB=x=y\n"}, func(c Config) any { return c.Env }, []string{"A=1", "B=x=y"}},
		{[]string{"--isolation-require", "uid+landlock,net=loopback-only"}, nil, func(c Config) any { return c.Require.Level }, slots.LevelUIDLandlock},
		{[]string{"--isolation-attempt", "ns"}, nil, func(c Config) any { return c.Attempt }, slots.LevelNS},
	} {
		got, err := parse(c.args, c.environ...)
		require.NoError(t, err, "%v %v", c.args, c.environ)
		assert.Equal(t, c.value, c.of(got), "%v %v", c.args, c.environ)
	}
}

func TestParseRefusesWhatCannotBe(t *testing.T) {
	for _, c := range []struct {
		args    []string
		environ []string
		text    string
	}{
		{[]string{"--nothing"}, nil, "nothing"},
		{[]string{"extra"}, nil, `"extra"`},
		{[]string{"--metrics-token-file", "/m"}, nil, "metrics-token-file: needs --token-file"},
		{nil, []string{"SANDBOXD_NOTHING=1"}, "unknown variable SANDBOXD_NOTHING"},
		{nil, []string{"SANDBOXD_=1"}, "unknown variable"},
		{nil, []string{"SANDBOXD_SLOTS=many"}, "SANDBOXD_SLOTS: want a number from 1 to 2000"},
		{[]string{"--slots", "0"}, nil, "slots"},
		{[]string{"--slots", "2001"}, nil, "slots"},
		{[]string{"--slots"}, nil, "slots"},
		{[]string{"--slots", ""}, nil, "slots"},
		{[]string{"--max-timeout", "0"}, nil, "duration above 0"},
		{[]string{"--max-timeout", "-5s"}, nil, "duration"},
		{[]string{"--keep", "NaN"}, nil, "duration"},
		{[]string{"--keep", "Inf"}, nil, "duration"},
		{[]string{"--keep", "1e300"}, nil, "duration"},
		{[]string{"--disk-backend", "floppy"}, nil, "--disk-backend: want one of auto quota tmpfs watcher"},
		{[]string{"--disk-backend", "quota"}, nil, "disk-backend: quota has nothing to hold"},
		{[]string{"--disk-backend", "tmpfs", "--disk-files", "9"}, nil, "disk-backend: tmpfs wants disk"},
		{[]string{"--disk-backend", "tmpfs", "--disk", "1G", "--memory", "1G"}, nil, "tmpfs wants disk below memory"},
		{[]string{"--address-space", "1GiB"}, nil, "address-space: want 0 or at least 2147483648"},
		{[]string{"--memory", "-1"}, nil, "size"},
		{[]string{"--memory", "1XB"}, nil, "size"},
		{[]string{"--memory", "9999999T"}, nil, "size"},
		{[]string{"--memory", "1.5G"}, nil, "size"},
		{[]string{"--cpus", "-1"}, nil, "number of 0 or more"},
		{[]string{"--cpus", "NaN"}, nil, "number"},
		{[]string{"--cpus", "Inf"}, nil, "number"},
		{[]string{"--port", "65536"}, nil, "port"},
		{[]string{"--port", "http"}, nil, "port"},
		{[]string{"--listen", "nowhere"}, nil, "listen"},
		{[]string{"--listen", "0.0.0.0:1"}, nil, "--insecure-no-auth"},
		{[]string{"--listen", ":1"}, nil, "loopback"},
		{[]string{"--host", "10.0.0.1"}, nil, "loopback"},
		{[]string{"--hide", "relative"}, nil, "absolute path"},
		{[]string{"--env", "novalue"}, nil, "NAME=value"},
		{[]string{"--env", "=x"}, nil, "NAME=value"},
		{[]string{"--network", "maybe"}, nil, "on or off"},
		{[]string{"--log-level", "loud"}, nil, "one of"},
		{[]string{"--log-json=perhaps"}, nil, "true or false"},
		{[]string{"--isolation-attempt", "strong"}, nil, "isolation"},
		{[]string{"--isolation-require", "ns,net=perfect"}, nil, "net"},
		{[]string{"--first-uid", "0"}, nil, "first-uid"},
	} {
		_, err := parse(c.args, c.environ...)
		require.ErrorIs(t, err, ErrUsage, "%v %v", c.args, c.environ)
		require.ErrorContains(t, err, c.text, "%v %v", c.args, c.environ)
		assert.NotContains(t, err.Error(), "\n", "one line")
	}
}

func TestHelpNamesEverySettingAndExitStatus(t *testing.T) {
	for _, flag := range []string{"-h", "--help"} {
		var out bytes.Buffer
		_, err := Parse([]string{flag}, nil, &out)
		require.ErrorIs(t, err, ErrHelp)
		for _, s := range settings(nil) {
			assert.Contains(t, out.String(), "--"+s.name+" ")
		}
		for _, status := range []string{"  0 ", "  1 ", "  64 ", "  78 ", "SANDBOXD_MAX_TIMEOUT"} {
			assert.Contains(t, out.String(), status)
		}
	}
}

func FuzzSizesAndDurations(f *testing.F) {
	for _, seed := range []string{"0", "64MiB", "2G", "1500kB", "-1", "9223372036854775807", "9e18", "5m", "1.5", "NaN", "1h1ms", "", "B", "0x10", "+5", "１"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c Config
		if size(func(c *Config) *int64 { return &c.KeepBytes })(&c, text) == nil {
			digits := strings.TrimRight(text, "bBkKmMgGtTiI")
			n, err := strconv.ParseInt(digits, 10, 64)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, c.KeepBytes, n, "a unit never makes it smaller, and nothing wraps around")
			assert.GreaterOrEqual(t, n, int64(0))
		}
		if duration(func(c *Config) *time.Duration { return &c.Keep })(&c, text) == nil {
			assert.Positive(t, c.Keep)
			if s, err := strconv.ParseFloat(text, 64); err == nil {
				assert.InDelta(t, s, c.Keep.Seconds(), math.Max(1e-6, s*1e-9))
			}
		}
	})
}

func TestAHomeThatCannotBeIsRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"an absolute path":  {"--home", "home"},
		"a private root":    {"--home", "/srv/acme", "--root", "private"},
		"slots what they m": {"--home", "/data/below", "--data-dir", "/data"},
		"must not see":      {"--home", "/", "--data-dir", "/data"},
	} {
		_, err := parse(args)
		require.ErrorIs(t, err, ErrUsage, want)
		assert.ErrorContains(t, err, want)
	}
}

func TestADataDirectoryIsWhereItsLinksLead(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o700))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "link")))
	for given, want := range map[string]string{"link": "real", "link/not/yet": "real/not/yet", "real": "real", "none/at/all": "none/at/all"} {
		c, err := parse([]string{"--data-dir", filepath.Join(dir, given)})
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(dir, want), c.DataDir, given)
	}
}
