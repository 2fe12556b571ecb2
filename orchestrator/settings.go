package orchestrator

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"berth/orchestrator/pool"
	"berth/slots"
)

// add makes a flag with its default.
func add(flags *flag.FlagSet, value flag.Value, name, byDefault, usage string) {
	if err := value.Set(byDefault); err != nil {
		panic(fmt.Sprintf("default of %s: %v", name, err))
	}
	flags.Var(value, name, usage)
}

// fromEnvironment reads variables, and is strict about names that look like
// ours.
func fromEnvironment(flags *flag.FlagSet, environ []string) error {
	byVariable := map[string]string{}
	flags.VisitAll(func(f *flag.Flag) { byVariable[envName(f.Name)] = f.Name })
	for _, kv := range environ {
		variable, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(variable, prefix) {
			continue
		}
		name, known := byVariable[variable]
		if !known {
			return fmt.Errorf("unknown variable %s", variable)
		}
		for _, one := range lines(flags.Lookup(name).Value, value) {
			if err := flags.Set(name, one); err != nil {
				return fmt.Errorf("%s: %w", variable, err)
			}
		}
	}
	return nil
}

// lines are the elements of a variable that holds several, one a line.
func lines(value flag.Value, text string) []string {
	switch value.(type) {
	case list, variables:
		return strings.Split(strings.Trim(text, "\n"), "\n")
	default:
		return []string{text}
	}
}

// maxFile bounds a file of settings, in bytes.
const maxFile = 1 << 20

// fromFile reads a file of settings. Beside the flags it may hold templates, a
// list of further ones.
func fromFile(flags *flag.FlagSet, c *Config, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	if len(text) > maxFile {
		return fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	if compact := new(bytes.Buffer); json.Compact(compact, text) == nil {
		text = compact.Bytes() // JSON may be indented by tabs, YAML not
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return err
	}
	if len(document.Content) == 0 {
		return nil // nothing in it
	}
	return fields(document.Content[0], func(name string, value *yaml.Node) error {
		if name == "templates" {
			return templates(c, value)
		}
		return set(flags, name, value)
	})
}

// templates reads further templates.
func templates(c *Config, from *yaml.Node) error {
	if from.Kind != yaml.SequenceNode {
		return fmt.Errorf("line %d: templates must be a list", from.Line)
	}
	for _, one := range from.Content {
		t := pool.Template{}
		flags := flag.NewFlagSet("template", flag.ContinueOnError)
		templateSettings(flags, &t)
		t.Name = ""
		if err := fields(one, func(name string, value *yaml.Node) error { return set(flags, name, value) }); err != nil {
			return err
		}
		c.Templates = append(c.Templates, t)
	}
	return nil
}

// fields calls do for every field of a mapping.
func fields(of *yaml.Node, do func(name string, value *yaml.Node) error) error {
	if of.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want names with values", of.Line)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(of.Content); i += 2 {
		name, value := of.Content[i], of.Content[i+1]
		if seen[name.Value] {
			return fmt.Errorf("line %d: %s is there twice", name.Line, name.Value)
		}
		seen[name.Value] = true
		if err := do(name.Value, value); err != nil {
			return err
		}
	}
	return nil
}

// set sets one flag from a file: to a value, or to each of several.
func set(flags *flag.FlagSet, name string, value *yaml.Node) error {
	f := flags.Lookup(name)
	if f == nil || name == "config" {
		return fmt.Errorf("line %d: unknown setting %q", value.Line, name)
	}
	one := func(text string) error {
		if err := flags.Set(name, text); err != nil {
			return fmt.Errorf("line %d: %s: %w", value.Line, name, err)
		}
		return nil
	}
	_, several := f.Value.(list)
	_, pairs := f.Value.(variables)
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag != "!!null":
		return one(value.Value)
	case value.Kind == yaml.SequenceNode && (several || pairs):
		for _, element := range value.Content {
			if element.Kind != yaml.ScalarNode {
				return fmt.Errorf("line %d: %s: want a list of texts", element.Line, name)
			}
			if err := one(element.Value); err != nil {
				return err
			}
		}
		return nil
	case value.Kind == yaml.MappingNode && pairs:
		return fields(value, func(variable string, value *yaml.Node) error {
			if value.Kind != yaml.ScalarNode {
				return fmt.Errorf("line %d: %s: want a text", value.Line, variable)
			}
			return one(variable + "=" + value.Value)
		})
	default:
		return fmt.Errorf("line %d: %s has no usable value", value.Line, name)
	}
}

func writeHelp(out io.Writer, flags *flag.FlagSet) {
	fmt.Fprint(out, `orchestrator serve: lease the slots of many containers to trajectories

Each flag is also an environment variable: --data-dir is ORCHESTRATOR_DATA_DIR.
A file (--config) has the same names: "data-dir: /var/lib/berth". It may hold
more pools: "templates:", a list of those flags from --template to --disk.
Variables win over the file, flags win over both. Where Nomad is stands in its
own variables: NOMAD_ADDR, NOMAD_TOKEN, NOMAD_NAMESPACE, NOMAD_REGION,
NOMAD_CACERT and so on.

Several orchestrators may serve the same containers of Nomad. One of them, who
holds a lock there, starts and stops containers; when it ends another one does.
Each learns within 5 seconds of a slot that another one has given, which is
too late for a trajectory's own calls: send all calls of a trajectory to
the same one, at least until its first call is older than that.

`)
	flags.VisitAll(func(f *flag.Flag) {
		fmt.Fprintf(out, "  --%-20s %s", f.Name, f.Usage)
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(out, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(out)
	})
	fmt.Fprint(out, `
Exit statuses:
  0   stopped by SIGTERM or SIGINT, everything drained
  1   failed: the log's last line says why
  64  the command line, a variable or the file cannot be used
  78  what they name cannot: a token, a key, a directory, sandboxd itself, or the
      isolation that they require: the log names axis, wanted, got and mend
`)
}

// The kinds of values. Each is a flag.Value.
type (
	size     struct{ at *int64 }
	duration struct{ at *time.Duration }
	integer  struct {
		at          *int
		least, most int
	}
	number struct{ at *float64 }
	word   struct {
		at    *string
		words []string
	}
	onOff     struct{ at *bool }
	list      struct{ at *[]string }
	variables struct{ at *map[string]string }
)

// Set takes what slots.ParseSize does.
func (v size) Set(s string) error { return take(v.at, s, slots.ParseSize) }

// Set takes what slots.ParseDuration does.
func (v duration) Set(s string) error { return take(v.at, s, slots.ParseDuration) }

// take keeps what was there of what cannot be read.
func take[T any](at *T, s string, parse func(string) (T, error)) error {
	v, err := parse(s)
	if err == nil {
		*at = v
	}
	return err
}

// Set takes a number within the bounds.
func (v integer) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.least || n > v.most {
		return fmt.Errorf("want a number from %d to %d", v.least, v.most)
	}
	*v.at = n
	return nil
}

// Set takes a number of 0 or more.
func (v number) Set(s string) error {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n < 0 || math.IsInf(n, 0) || math.IsNaN(n) {
		return errors.New("want a number of 0 or more")
	}
	*v.at = n
	return nil
}

// Set takes one of the words.
func (v word) Set(s string) error {
	if !slices.Contains(v.words, s) {
		return fmt.Errorf("want one of %s", strings.Join(v.words, " "))
	}
	*v.at = s
	return nil
}

// Set takes on and off.
func (v onOff) Set(s string) error {
	if s != "on" && s != "off" {
		return errors.New("want on or off")
	}
	*v.at = s == "on"
	return nil
}

// Set adds an element.
func (v list) Set(s string) error {
	*v.at = append(*v.at, s)
	return nil
}

// Set adds NAME=value, or replaces the value.
func (v variables) Set(s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok || name == "" || strings.Contains(s, "\x00") {
		return errors.New("want NAME=value")
	}
	if *v.at == nil {
		*v.at = map[string]string{}
	}
	(*v.at)[name] = value
	return nil
}

// String is the value as Set takes it, as far as help shows it.
func (v size) String() string {
	if v.at == nil {
		return ""
	}
	if n := *v.at; n >= 1<<20 && n%(1<<20) == 0 {
		return strconv.FormatInt(n>>20, 10) + "MiB"
	}
	return strconv.FormatInt(*v.at, 10)
}

// String is the value as Set takes it.
func (v duration) String() string {
	if v.at == nil {
		return ""
	}
	return v.at.String()
}

// String is the value as Set takes it.
func (v integer) String() string {
	if v.at == nil {
		return ""
	}
	return strconv.Itoa(*v.at)
}

// String is the value as Set takes it.
func (v number) String() string {
	if v.at == nil {
		return ""
	}
	return strconv.FormatFloat(*v.at, 'f', -1, 64)
}

// String is the value as Set takes it.
func (v word) String() string {
	if v.at == nil {
		return ""
	}
	return *v.at
}

// String is the value as Set takes it.
func (v onOff) String() string {
	if v.at == nil {
		return ""
	}
	return map[bool]string{true: "on", false: "off"}[*v.at]
}

// String is empty: there is no default.
func (list) String() string { return "" }

// String is the names without their values, which may be secret.
func (v variables) String() string {
	if v.at == nil {
		return ""
	}
	return strings.Join(slices.Sorted(maps.Keys(*v.at)), " ")
}
