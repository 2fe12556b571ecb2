package workspace

import (
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// maxIgnoreFile bounds how much of one .gitignore is read.
const maxIgnoreFile = 256 << 10

// ignoreNames are the files with ignore rules; a later one overrides.
var ignoreNames = []string{".gitignore", ".ignore", ".rgignore"}

// ignoreRule is one line of a .gitignore.
type ignoreRule struct {
	glob     *glob
	negated  bool
	dirOnly  bool
	anchored bool // matched with the path from the file's directory, not with the name
}

// parseIgnore reads ignore rules as git does. Lines that git could never
// match are left out.
func parseIgnore(text string, d dialect) []ignoreRule {
	var rules []ignoreRule
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\ufeff"), "\n") {
		if rule, ok := parseIgnoreLine(strings.TrimSuffix(line, "\r"), d); ok {
			rules = append(rules, rule)
		}
	}
	return rules
}

func parseIgnoreLine(line string, d dialect) (ignoreRule, bool) {
	var rule ignoreRule
	if strings.HasPrefix(line, "#") {
		return rule, false
	}
	line = trimSpaces(line)
	line, rule.negated = strings.CutPrefix(line, "!")
	if line, rule.dirOnly = strings.CutSuffix(line, "/"); line == "" {
		return rule, false
	}
	rule.anchored = strings.Contains(line, "/")
	var err error
	rule.glob, err = compileGlob(strings.TrimPrefix(line, "/"), d)
	return rule, err == nil
}

// trimSpaces removes trailing spaces but for one that is escaped.
func trimSpaces(line string) string {
	trimmed := strings.TrimRight(line, " ")
	backslashes := len(trimmed) - len(strings.TrimRight(trimmed, `\`))
	if backslashes%2 == 1 && len(trimmed) < len(line) {
		return trimmed + " "
	}
	return trimmed
}

// verdict is what a set of rules says about a path.
type verdict int

const (
	noVerdict verdict = iota
	ignored
	included // by a negated rule
)

// judge asks the rules about rel, a path from their directory. The last rule
// that matches decides.
func judge(rules []ignoreRule, rel string, isDir bool) verdict {
	name := path.Base(rel)
	for i := len(rules) - 1; i >= 0; i-- {
		r := &rules[i]
		if r.dirOnly && !isDir {
			continue
		}
		subject := name
		if r.anchored {
			subject = rel
		}
		if r.glob.match(subject) {
			if r.negated {
				return included
			}
			return ignored
		}
	}
	return noVerdict
}

// ignoreStack holds the rules of the directories from the workspace down to
// the one at hand. Deeper rules override.
type ignoreStack struct {
	sets []ignoreSet
}

type ignoreSet struct {
	prefix int // length of the path of the rules' directory, from the workspace
	rules  []ignoreRule
}

// push loads the rules of a directory, whose path from the workspace has
// prefix bytes with its final slash.
func (s *ignoreStack) push(t *Tree, dir handle, prefix int) {
	set := ignoreSet{prefix: prefix}
	for _, name := range ignoreNames {
		set.rules = append(set.rules, parseIgnore(t.readIgnore(dir, name), gitGlob)...)
	}
	s.sets = append(s.sets, set)
}

func (s *ignoreStack) pop() { s.sets = s.sets[:len(s.sets)-1] }

func (s *ignoreStack) judge(full string, isDir bool) verdict {
	for i := len(s.sets) - 1; i >= 0; i-- {
		set := &s.sets[i]
		if len(set.rules) == 0 {
			continue
		}
		if v := judge(set.rules, full[set.prefix:], isDir); v != noVerdict {
			return v
		}
	}
	return noVerdict
}

// readIgnore returns the text of an ignore file; what is missing, no regular
// file or unreadable ignores nothing.
func (t *Tree) readIgnore(dir handle, name string) string {
	f, err := openAt(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.close()
	if _, err := t.checkFile(f); err != nil {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	if err != nil {
		return ""
	}
	return string(text)
}
