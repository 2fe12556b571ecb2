package environment

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"berth/sandboxd/api"
)

// installError is an environment that cannot be made from its spec.
type installError struct{ api.EnvironmentFailure }

// Error is the one sentence.
func (e *installError) Error() string { return e.Message }

// clue is how one of the tools says why it failed. What it is about, if it
// says so, is the pattern's first group.
type clue struct {
	reason  api.InstallReason
	pattern *regexp.Regexp
}

// clues are looked for in this order: what a full disk or a silent index makes
// a tool say of a package is not about the package.
var clues = sync.OnceValue(func() []clue {
	return []clue{
		{api.InstallDiskFull, regexp.MustCompile(`(?i)no space left on device|disk quota exceeded|\bENOSPC\b|\bEDQUOT\b|os error 28\)`)},
		{api.InstallMemory, regexp.MustCompile(`(?m)^MemoryError|Cannot allocate memory|JavaScript heap out of memory|\bENOMEM\b`)},
		{api.InstallUnreachable, regexp.MustCompile(`(?i)failed to establish a new connection|name resolution|NameResolutionError|connection refused|connection reset|read timed out|connect timeout|CERTIFICATE_VERIFY_FAILED|SSLError|\bECONNREFUSED\b|\bECONNRESET\b|\bENOTFOUND\b|\bEAI_AGAIN\b|\bETIMEDOUT\b|network is unreachable|error sending request|dns error`)},
		// pip
		{api.InstallConflict, regexp.MustCompile(`(?m)^ERROR: Cannot install (.+?) because these package versions have conflicting dependencies`)},
		{api.InstallConflict, regexp.MustCompile(`ResolutionImpossible`)},
		{api.InstallNotFound, regexp.MustCompile(`(?m)^ERROR: No matching distribution found for (.+?)(?: \(from .*)?$`)},
		{api.InstallNotFound, regexp.MustCompile(`(?m)^ERROR: Could not find a version that satisfies the requirement (.+?) \(from`)},
		{api.InstallNotFound, regexp.MustCompile(`(?m)^ERROR: (?:Package|Ignored the following).*requires a different Python`)},
		{api.InstallBuild, regexp.MustCompile(`(?m)^ERROR: Failed building wheel for (\S+)`)},
		{api.InstallBuild, regexp.MustCompile(`(?m)^ERROR: Failed to build (?:installable wheels for some pyproject.toml based projects \()?([^\s()]+)`)},
		{api.InstallBuild, regexp.MustCompile(`subprocess-exited-with-error|metadata-generation-failed|Could not build wheels`)},
		// uv
		{api.InstallNotFound, regexp.MustCompile(`Because (\S+) was not found in the`)},
		{api.InstallNotFound, regexp.MustCompile(`Because there (?:is|are) no versions? of (\S+)`)},
		{api.InstallNotFound, regexp.MustCompile(`Because only \S+ is available and you require (\S+?),`)},
		{api.InstallConflict, regexp.MustCompile(`No solution found when resolving|requirements are unsatisfiable`)},
		{api.InstallBuild, regexp.MustCompile("Failed to build `([^`]+)`")},
		// npm
		{api.InstallNotFound, regexp.MustCompile(`'([^']+)' is not in this registry`)},
		{api.InstallNotFound, regexp.MustCompile(`No matching version found for (\S+?)\.?(?:\s|$)`)},
		{api.InstallNotFound, regexp.MustCompile(`(?m)code E404`)},
		{api.InstallConflict, regexp.MustCompile(`(?m)code ERESOLVE`)},
		{api.InstallBuild, regexp.MustCompile(`(?m)^npm (?:ERR!|error) path .*/node_modules/((?:@[^/\s]+/)?[^/\s]+)$`)},
	}
})

// collecting is how pip says which package it deals with: the last one is what
// its failure is about.
var collecting = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\s*(?:Collecting|Processing|Building wheel for|Building wheels for collected packages:) (\S+)`)
})

// sentences are the messages, with %s for what it is about.
var sentences = map[api.InstallReason]string{
	api.InstallNotFound:    "no package fits %s",
	api.InstallConflict:    "the versions that are required exclude each other: %s",
	api.InstallUnreachable: "the index does not answer, for %s",
	api.InstallBuild:       "the package's own build failed: %s",
	api.InstallDiskFull:    "the packages need more room than there is, for %s",
	api.InstallMemory:      "the installation used up its memory, for %s",
	api.InstallVerify:      "the packages were installed and do not fit together: %s",
	api.InstallOther:       "the packages cannot be installed: %s",
}

// judge finds out from a tool's output why it failed.
func (w *workshop) judge(output string) error {
	for _, c := range clues() {
		found := c.pattern.FindStringSubmatch(output)
		if found == nil {
			continue
		}
		about := ""
		if len(found) > 1 {
			about = found[1]
		}
		if c.reason == api.InstallBuild && about == "" {
			if all := collecting().FindAllStringSubmatch(output, -1); len(all) > 0 {
				about = all[len(all)-1][1]
			}
		}
		return w.fault(c.reason, about, output)
	}
	return w.fault(api.InstallOther, "", output)
}

// fault is a failure for the reason, which is about one requirement or "".
func (w *workshop) fault(reason api.InstallReason, about, output string) error {
	f := api.EnvironmentFailure{Kind: api.KindInstall, Reason: reason, Requirement: w.requirement(about), Output: tail(output, lastWords)}
	all := f.Requirement
	if all == "" {
		for i, r := range w.spec.Requirements {
			if i > 0 {
				all += ", "
			}
			all += r.Argument(w.spec.Language)
		}
	}
	if reason == api.InstallConflict && about != "" && f.Requirement == "" {
		all = about
	}
	if reason == api.InstallTimeout {
		f.Message = fmt.Sprintf("the installation took longer than %s: %s", w.timeout.Round(time.Second), all)
	} else {
		f.Message = fmt.Sprintf(sentences[reason], all)
	}
	f.Message = cut(f.Message, 500)
	return &installError{f}
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " …"
}

var nameEnds = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[=<>!~@;\[( ]`) })

// requirement is the one of the spec that a tool's word is about, else the
// word, if it is one: a package that another one needs.
func (w *workshop) requirement(about string) string {
	about = strings.TrimSpace(about)
	if about == "" || len(w.spec.Requirements) == 1 && strings.Contains(about, " ") {
		if len(w.spec.Requirements) == 1 {
			return w.spec.Requirements[0].Argument(w.spec.Language)
		}
		return ""
	}
	if strings.Contains(about, " and ") || strings.Contains(about, ", ") {
		return "" // not one alone
	}
	if strings.HasPrefix(about, "/") {
		// A source archive's file: NAME-VERSION and what it ends in.
		about, _, _ = strings.Cut(path.Base(about), "-")
	}
	name := plainName(about)
	for _, r := range w.spec.Requirements {
		if plainName(r.Name) == name {
			return r.Argument(w.spec.Language)
		}
	}
	return cut(about, 200)
}

// plainName is a name without version and extras, as names are compared.
func plainName(text string) string {
	scope := ""
	if strings.HasPrefix(text, "@") {
		scope, text = "@", text[1:]
	}
	if at := nameEnds().FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	return scope + api.ComparedName(text)
}

// lacking is a failure for want of a program in the container.
func lacking(format string, args ...any) error {
	return &installError{api.EnvironmentFailure{
		Kind: api.KindInstall, Reason: api.InstallInterpreter, Message: fmt.Sprintf(format, args...),
	}}
}
