package sandboxd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/slots"
)

// ErrUsage is a command line or environment that cannot be used.
var ErrUsage = errors.New("usage")

// ErrHelp asks for help, which has been written.
var ErrHelp = errors.New("help asked for")

// Parse reads the settings: defaults, then SANDBOXD_ variables of environ,
// then args. Help goes to out. Errors wrap ErrUsage or are ErrHelp.
func Parse(args, environ []string, out io.Writer) (Config, error) {
	var c Config
	table := settings(environ)
	for _, s := range table {
		if s.value == "" {
			continue
		}
		if err := s.set(&c, s.value); err != nil {
			return Config{}, fmt.Errorf("%w: default of %s: %w", ErrUsage, s.name, err)
		}
	}
	variables, err := fromEnvironment(table, environ)
	if err == nil {
		err = variables.apply(&c, table)
	}
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	flags, err := fromArguments(table, args)
	if errors.Is(err, flag.ErrHelp) {
		writeHelp(out, table)
		return Config{}, ErrHelp
	}
	if err == nil {
		err = flags.apply(&c, table)
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	return c, nil
}

// assignment is a setting that somebody has made.
type assignment struct {
	name string // of the setting
	said string // the flag or variable, for messages
	text string
}

// assignments are those of one source, in the order in which they were made.
type assignments []assignment

// apply sets them in the order of the table.
func (a assignments) apply(c *Config, table []setting) error {
	for _, s := range table {
		for _, one := range a {
			if one.name != s.name {
				continue
			}
			if err := s.set(c, one.text); err != nil {
				return fmt.Errorf("%s: %w", one.said, err)
			}
		}
	}
	return nil
}

// fromArguments reads flags.
func fromArguments(table []setting, args []string) (assignments, error) {
	var made assignments
	flags := flag.NewFlagSet("sandboxd serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	for _, s := range table {
		set := func(text string) error {
			made = append(made, assignment{s.name, "--" + s.name, text})
			return nil
		}
		if s.value == "false" {
			flags.BoolFunc(s.name, s.usage, set)
			continue
		}
		flags.Func(s.name, s.usage, set)
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return made, nil
}

// fromEnvironment reads variables, and is strict about names that look like
// ours.
func fromEnvironment(table []setting, environ []string) (assignments, error) {
	var made assignments
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "SANDBOXD_") {
			continue
		}
		i := slices.IndexFunc(table, func(s setting) bool { return envName(s.name) == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown variable %s", name)
		}
		made = append(made, assignment{table[i].name, name, value})
	}
	return made, nil
}

func writeHelp(out io.Writer, table []setting) {
	fmt.Fprint(out, `sandboxd serve: serve the slots of this container

Each flag is also an environment variable: --max-timeout is SANDBOXD_MAX_TIMEOUT.
Flags win over variables.

`)
	for _, s := range table {
		fmt.Fprintf(out, "  --%-18s %s", s.name, s.usage)
		if s.value != "" && s.value != "false" {
			fmt.Fprintf(out, " (default %s)", s.value)
		}
		fmt.Fprintln(out)
	}
	fmt.Fprint(out, `
Exit statuses:
  0   stopped by SIGTERM or SIGINT, everything drained
  1   failed: the log's last line says why
  64  the command line or a variable cannot be used
  78  this machine does not give the required isolation; the message names
      the axis, what was wanted, what it got, and what mends it
`)
}

func text(at func(*Config) *string) func(*Config, string) error {
	return func(c *Config, s string) error {
		*at(c) = s
		return nil
	}
}

func oneOf(at func(*Config) *string, words ...string) func(*Config, string) error {
	return func(c *Config, s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("want one of %s", strings.Join(words, " "))
		}
		*at(c) = s
		return nil
	}
}

func onOff(at func(*Config) *bool, yes, no string) func(*Config, string) error {
	return func(c *Config, s string) error {
		if s != yes && s != no {
			return fmt.Errorf("want %s or %s", yes, no)
		}
		*at(c) = s == yes
		return nil
	}
}

func boolean(at func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, s string) error {
		v, err := strconv.ParseBool(s)
		if err != nil {
			return errors.New("want true or false")
		}
		*at(c) = v
		return nil
	}
}

func integer(at func(*Config) *int, least, most int) func(*Config, string) error {
	return func(c *Config, s string) error {
		v, err := strconv.Atoi(s)
		if err != nil || v < least || v > most {
			return fmt.Errorf("want a number from %d to %d", least, most)
		}
		*at(c) = v
		return nil
	}
}

func number(at func(*Config) *float64) func(*Config, string) error {
	return func(c *Config, s string) error {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || v < 0 || math.IsInf(v, 0) || math.IsNaN(v) {
			return errors.New("want a number of 0 or more")
		}
		*at(c) = v
		return nil
	}
}

// duration takes 90s, 5m, and, as the reference does, plain seconds.
func duration(at func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, s string) error {
		v, err := slots.ParseDuration(s)
		if err != nil {
			return err
		}
		*at(c) = v
		return nil
	}
}

// size takes 65536, 64MiB, 2G.
func size(at func(*Config) *int64) func(*Config, string) error {
	return func(c *Config, s string) error {
		v, err := slots.ParseSize(s)
		if err != nil {
			return err
		}
		*at(c) = v
		return nil
	}
}

// list adds one element per use; a variable holds one a line.
func list(at func(*Config) *[]string, ok func(string) bool, want string) func(*Config, string) error {
	return func(c *Config, s string) error {
		for one := range strings.SplitSeq(strings.Trim(s, "\n"), "\n") {
			if !ok(one) {
				return fmt.Errorf("want %s, got %q", want, one)
			}
			*at(c) = append(*at(c), one)
		}
		return nil
	}
}
