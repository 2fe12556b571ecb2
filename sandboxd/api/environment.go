package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/slots"
)

// The languages of environments.
const (
	LanguagePython = "python"
	LanguageNode   = "node"
)

// Bounds of an EnvironmentSpec.
const (
	maxRequirements   = 500
	maxRequirement    = 214 // bytes of a name, as npm has it
	maxVersion        = 128 // bytes
	maxIndexes        = 32
	maxIndexURL       = 2048 // bytes
	environmentPrefix = "/v1/environments/"
)

// EnvironmentSpec says what an environment holds: a tree of packages that the
// programs of slots can import. It is the body of PUT /v1/environments/{key},
// whose key is the spec's own.
type EnvironmentSpec struct {
	Language string `json:"language"` // LanguagePython or LanguageNode
	// Version is that of the interpreter, as far as it matters: "3", "3.11".
	// "" is the container's own.
	Version      string        `json:"version,omitempty"`
	Requirements []Requirement `json:"requirements"`
	Index        Index         `json:"index,omitzero"`
}

// Requirement is one package by its name in its index, for Python also with
// extras as in "httpx[http2]". Version is an exact one, or what the language's
// own tool takes in its place: ">=1.2,<2", "^4.1.0"; "" is any.
type Requirement struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// Argument is the requirement of a normalized spec as the tool of the language
// has it: "httpx==0.27", "lodash@^4.1.0".
func (r Requirement) Argument(language string) string {
	if r.Version == "" || language == LanguagePython {
		return r.Name + r.Version
	}
	return r.Name + "@" + r.Version
}

// Index says where packages come from. Zero is where the tools of the
// container look by themselves. A password in a URL is used and never shown.
type Index struct {
	IndexURL       string   `json:"index_url,omitempty"`        // instead of the Python package index
	ExtraIndexURLs []string `json:"extra_index_urls,omitempty"` // besides it
	NPMRegistry    string   `json:"npm_registry,omitempty"`     // instead of npm's
	// FindLinks are directories in the container, and for Python also URLs of
	// pages, that hold wheels and source archives, or npm tarballs.
	FindLinks []string `json:"find_links,omitempty"`
	NoIndex   bool     `json:"no_index,omitempty"` // FindLinks alone: works without a network
}

// Normalized is the spec in the form that its key is made of: names as the
// index compares them, each once, sorted; versions without spaces. The error
// is a slots.KindBadRequest that names what cannot be: every name and version
// of a normalized spec can be passed to the language's tool as an argument.
func (s EnvironmentSpec) Normalized() (EnvironmentSpec, error) {
	if s.Language != LanguagePython && s.Language != LanguageNode {
		return s, slots.Errorf(slots.KindBadRequest, "language %.40q: want %s or %s", s.Language, LanguagePython, LanguageNode)
	}
	if s.Version != "" && !interpreterVersion().MatchString(s.Version) {
		return s, slots.Errorf(slots.KindBadRequest, "interpreter version %.40q: want numbers, as 3.11", s.Version)
	}
	if len(s.Requirements) > maxRequirements {
		return s, slots.Errorf(slots.KindBadRequest, "%d requirements: at most %d", len(s.Requirements), maxRequirements)
	}
	all := make([]Requirement, 0, len(s.Requirements))
	for _, r := range s.Requirements {
		n, err := r.normalized(s.Language)
		if err != nil {
			return s, err
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b Requirement) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
	})
	all = slices.Compact(all)
	for i := 1; i < len(all); i++ {
		if all[i].Name == all[i-1].Name {
			return s, slots.Errorf(slots.KindBadRequest, "requirement %s is there with versions %q and %q", all[i].Name, all[i-1].Version, all[i].Version)
		}
	}
	s.Requirements = all
	if len(s.Index.ExtraIndexURLs) == 0 {
		s.Index.ExtraIndexURLs = nil
	}
	if len(s.Index.FindLinks) == 0 {
		s.Index.FindLinks = nil
	}
	return s, s.Index.check()
}

// Key names the environment: the SHA-256 of the normalized spec, in hex. It is
// "" for a spec without requirements: that is the plain interpreter, of which
// nothing is built or kept. The error is that of Normalized.
func (s EnvironmentSpec) Key() (string, error) {
	n, err := s.Normalized()
	if err != nil || len(n.Requirements) == 0 {
		return "", err
	}
	text, err := json.Marshal(n)
	if err != nil {
		return "", slots.Errorf(slots.KindInternal, "encode environment: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// pattern compiles a regular expression when it is first used: each holder is
// this program too, and would compile it whenever one starts.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

var environmentKey = pattern(`^[0-9a-f]{64}$`)

// IsEnvironmentKey reports whether the text can be a key.
func IsEnvironmentKey(text string) bool { return environmentKey().MatchString(text) }

// The forms of names and versions. None begins with what a tool takes for an
// option, a path or a URL, and none holds what a shell would read.
var (
	interpreterVersion = pattern(`^[0-9]{1,4}(\.[0-9]{1,6}){0,2}$`)
	pythonName         = pattern(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[([A-Za-z0-9._,-]+)\])?$`)
	pythonVersion      = pattern(`^(?:(?:===|==|~=|!=|<=|>=|<|>)[A-Za-z0-9][A-Za-z0-9.+!*_-]*,?)+$`)
	pythonExact        = pattern(`^[A-Za-z0-9][A-Za-z0-9.+!*_-]*$`)
	pythonSpaces       = pattern(`\s*([=~!<>]+|,)\s*`)
	pythonSeparators   = pattern(`[-_.]+`)
	nodeName           = pattern(`^(?:@[a-z0-9_~][a-z0-9._~-]*/)?[A-Za-z0-9_~][A-Za-z0-9._~-]*$`)
	nodeVersion        = pattern(`^[A-Za-z0-9^~<>=*][A-Za-z0-9^~<>=*.+| -]*$`)
)

func (r Requirement) normalized(language string) (Requirement, error) {
	r.Name, r.Version = strings.TrimSpace(r.Name), strings.TrimSpace(r.Version)
	if len(r.Name) > maxRequirement || len(r.Version) > maxVersion {
		return r, slots.Errorf(slots.KindBadRequest, "requirement %.60q is too long", r.Name)
	}
	if language == LanguageNode {
		if !nodeName().MatchString(r.Name) {
			return r, badName(r.Name)
		}
		r.Version = strings.Join(strings.Fields(r.Version), " ")
		if r.Version != "" && !nodeVersion().MatchString(r.Version) {
			return r, badVersion(r)
		}
		return r, nil
	}
	parts := pythonName().FindStringSubmatch(r.Name)
	if parts == nil {
		return r, badName(r.Name)
	}
	r.Name = ComparedName(parts[1])
	if parts[2] != "" {
		extras := strings.Split(parts[2], ",")
		for i, extra := range extras {
			if extras[i] = ComparedName(extra); !pythonName().MatchString(extra) {
				return r, badName(r.Name + "[" + parts[2] + "]")
			}
		}
		slices.Sort(extras)
		r.Name += "[" + strings.Join(slices.Compact(extras), ",") + "]"
	}
	r.Version = pythonSpaces().ReplaceAllString(r.Version, "$1")
	switch {
	case r.Version == "" || pythonVersion().MatchString(r.Version) && !strings.HasSuffix(r.Version, ","):
	case pythonExact().MatchString(r.Version):
		r.Version = "==" + r.Version
	default:
		return r, badVersion(r)
	}
	return r, nil
}

// ComparedName is a package's name as PEP 503 compares it.
func ComparedName(name string) string {
	return pythonSeparators().ReplaceAllString(strings.ToLower(name), "-")
}

func badName(name string) error {
	return slots.Errorf(slots.KindBadRequest, "requirement %.80q is no name of a package", name)
}

func badVersion(r Requirement) error {
	return slots.Errorf(slots.KindBadRequest, "requirement %.80s: %.80q is no version", r.Name, r.Version)
}

func (x Index) check() error {
	if len(x.ExtraIndexURLs)+len(x.FindLinks) > maxIndexes {
		return slots.Errorf(slots.KindBadRequest, "more than %d places to find packages", maxIndexes)
	}
	for _, at := range append([]string{x.IndexURL, x.NPMRegistry}, x.ExtraIndexURLs...) {
		if at != "" && !isIndexURL(at) {
			return slots.Errorf(slots.KindBadRequest, "an index is no http or https URL")
		}
	}
	for _, at := range x.FindLinks {
		clean := path.IsAbs(at) && path.Clean(at) == at && at != "/" && !hasSpace(at)
		if u, err := url.Parse(at); !clean && (!isIndexURL(at) || err != nil || u.User != nil) {
			return slots.Errorf(slots.KindBadRequest, "find_links %.80q is neither an absolute path nor an http or https URL without a password", at)
		}
	}
	return nil
}

// hasSpace reports what the tools would take for the end of a value.
func hasSpace(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

func isIndexURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && !hasSpace(text) && len(text) <= maxIndexURL
}

// Environment is one environment as GET /v1/environments shows it.
type Environment struct {
	Key          string           `json:"key"`
	Language     string           `json:"language"`
	State        EnvironmentState `json:"state"`
	Path         string           `json:"path"`                  // as slots see it
	Interpreter  string           `json:"interpreter,omitempty"` // its whole version, as 3.11.2
	Requirements []Requirement    `json:"requirements"`
	SizeBytes    int64            `json:"size_bytes"`
	Files        int64            `json:"files"`
	Built        time.Time        `json:"built,omitzero"`
	LastUsed     time.Time        `json:"last_used,omitzero"`
	InUse        int              `json:"in_use"` // by how many executions and interpreters now
}

// EnvironmentState is what can be done with an environment.
type EnvironmentState string

// The states of environments.
const (
	EnvironmentReady    EnvironmentState = "ready"
	EnvironmentBuilding EnvironmentState = "building"
)

// Environments is the answer of GET /v1/environments, sorted by key.
type Environments struct {
	Environments []Environment `json:"environments"`
	SizeBytes    int64         `json:"size_bytes"` // of all together
	MaxBytes     int64         `json:"max_bytes"`  // above which those longest unused go
}

// DeletedEnvironment is the answer of DELETE /v1/environments/{key}.
type DeletedEnvironment struct {
	Key     string `json:"key"`
	Deleted bool   `json:"deleted"` // always true
}

// EnvironmentResult answers PUT /v1/environments/{key} with status 200. Either
// Environment is there, or Failure says why the packages could not be
// installed. A streamed answer that ends with Error is one that could not be
// carried out for another reason.
type EnvironmentResult struct {
	Environment *Environment        `json:"environment,omitempty"`
	Cached      bool                `json:"cached"`   // nothing had to be built
	BuildMS     float64             `json:"build_ms"` // how long this request waited for a build
	Failure     *EnvironmentFailure `json:"failure,omitempty"`
	Error       *Fault              `json:"error,omitempty"`
}

// EnvironmentFailure is an environment that cannot be made from its spec.
type EnvironmentFailure struct {
	Kind   string        `json:"kind"` // always "install"
	Reason InstallReason `json:"reason"`
	// Requirement is the one that failed, as far as the tool said so; "" when
	// it did not, or when it was not one alone.
	Requirement string `json:"requirement,omitempty"`
	Message     string `json:"message"` // one sentence
	Output      string `json:"output"`  // the tool's own last words, at most 8 KiB
}

// KindInstall is the Kind of every EnvironmentFailure.
const KindInstall = "install"

// InstallReason says why packages could not be installed.
type InstallReason string

// The reasons.
const (
	InstallNotFound    InstallReason = "not_found"   // no such package or version
	InstallConflict    InstallReason = "conflict"    // versions that exclude each other
	InstallUnreachable InstallReason = "unreachable" // the index does not answer
	InstallBuild       InstallReason = "build"       // a package's own build failed
	InstallTimeout     InstallReason = "timeout"
	InstallDiskFull    InstallReason = "disk_full"
	InstallMemory      InstallReason = "memory"
	InstallVerify      InstallReason = "verify"      // it was installed and does not fit together
	InstallInterpreter InstallReason = "interpreter" // the container lacks it, or the tool that installs
	InstallCancelled   InstallReason = "cancelled"   // by DELETE, or because the container ends
	InstallOther       InstallReason = "other"
)

// EventProgress is the event of a streamed EnvironmentResult that is not there
// for executions; EventPing and EventResult are of both.
const EventProgress EventName = "progress"

// EnvironmentEvent is one line of a streamed answer to PUT /v1/environments/{key}:
// progress and pings, and one result as the last.
type EnvironmentEvent struct {
	Event EventName `json:"event"`
	Text  string    `json:"text,omitempty"` // of EventProgress: one line of the tool's
	*EnvironmentResult
}

// EnvironmentRoute is the escaped path of an environment at its container.
func EnvironmentRoute(key string) string { return environmentPrefix + url.PathEscape(key) }
