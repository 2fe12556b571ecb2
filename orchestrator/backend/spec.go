package backend

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"strings"
	"time"

	"berth/slots"
)

// Spec says what to start. It is a plain value; the zero value of each field
// but ID and Slots means sandboxd's default.
type Spec struct {
	ID         string            // chosen by the caller: starting the same ID twice is starting it once
	Template   string            // name of the template; free text
	Slots      int               // 1 to MaxSlots
	Isolation  string            // least isolation to accept, as sandboxd's --isolation-require; "": sandboxd's default
	Env        map[string]string // environment of the slots; may be secret
	Network    bool              // whether slots may use the network
	MaxTimeout time.Duration     // longest timeout that a call may name
	Limits     Limits            // of each slot
}

// Limits is how much one slot may use. 0 means sandboxd's default.
type Limits struct {
	MemoryBytes int64
	Pids        int64
	CPUs        float64 // CPUs' worth of time per second
	DiskBytes   int64
}

// MaxSlots is how many slots one container may serve.
const MaxSlots = 2000

// maxEnvBytes keeps the environment below what a process can be started with.
const maxEnvBytes = 96 << 10

// idPattern fits a file's name, a host's name and a job's name.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

var envPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckID refuses, with slots.KindBadRequest, what cannot be the ID of a
// container.
func CheckID(id string) error {
	if !idPattern.MatchString(id) {
		return bad("id %.80q: want 1 to 63 letters, digits, - and _, the first a letter or digit", id)
	}
	return nil
}

// Check refuses, with slots.KindBadRequest, a Spec that no backend can start.
func (s Spec) Check() error {
	if err := CheckID(s.ID); err != nil {
		return err
	}
	if s.Slots < 1 || s.Slots > MaxSlots {
		return bad("slots: want 1 to %d, got %d", MaxSlots, s.Slots)
	}
	if _, err := slots.ParseRequirement(s.Isolation); err != nil {
		return bad("isolation: %w", err)
	}
	if s.MaxTimeout < 0 {
		return bad("longest timeout: want 0 or more, got %v", s.MaxTimeout)
	}
	l := s.Limits
	if l.MemoryBytes < 0 || l.Pids < 0 || l.DiskBytes < 0 || !(l.CPUs >= 0) || math.IsInf(l.CPUs, 0) {
		return bad("limits: want numbers of 0 or more, got %+v", l)
	}
	return checkEnv(s.Env)
}

// checkEnv names the variable that is wrong, never its value.
func checkEnv(env map[string]string) error {
	size := 0
	for name, value := range env {
		if !envPattern.MatchString(name) {
			return bad("env: %q is no name of a variable", name)
		}
		if strings.ContainsAny(value, "\x00\n") {
			return bad("env: the value of %s has a line break or a zero byte", name)
		}
		size += len(name) + len(value) + 2
	}
	if size > maxEnvBytes {
		return bad("env: %d bytes, at most %d fit", size, maxEnvBytes)
	}
	return nil
}

// Equal reports whether both say the same.
func (s Spec) Equal(o Spec) bool {
	return s.ID == o.ID && s.Template == o.Template && s.Slots == o.Slots && s.Isolation == o.Isolation &&
		maps.Equal(s.Env, o.Env) && s.Network == o.Network && s.MaxTimeout == o.MaxTimeout && s.Limits == o.Limits
}

// Meta is the Spec as a job says it, so that who has asked for the job knows it
// again. The environment may be secret and is left out.
func (s Spec) Meta() (string, error) {
	s.Env = nil
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("describe spec: %w", err)
	}
	return string(text), nil
}

// Clone returns a copy that shares nothing with s.
func (s Spec) Clone() Spec {
	s.Env = maps.Clone(s.Env)
	return s
}

// String describes the Spec without the values of its environment.
func (s Spec) String() string { return fmt.Sprintf("%+v", plainSpec(s.withoutValues())) }

// GoString describes the Spec without the values of its environment.
func (s Spec) GoString() string { return "backend.Spec" + s.String() }

// plainSpec is a Spec without its methods.
type plainSpec Spec

func (s Spec) withoutValues() Spec {
	s = s.Clone()
	for name := range s.Env {
		s.Env[name] = redacted
	}
	return s
}

func bad(format string, args ...any) error {
	return slots.Errorf(slots.KindBadRequest, format, args...)
}
