package environment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/sandboxd/api"
)

// touchPause is how often at most a use is written down.
const touchPause = time.Minute

// record is what is kept of an environment beside its tree. It is the agent's
// own, and names no index: that may have a password.
type record struct {
	Key          string            `json:"key"`
	Tree         string            `json:"tree"`
	Language     string            `json:"language"`
	Requirements []api.Requirement `json:"requirements"`
	Interpreter  interpreter       `json:"interpreter"`
	SizeBytes    int64             `json:"size_bytes"`
	Files        int64             `json:"files"`
	Built        time.Time         `json:"built"`
}

// interpreter is the program that a tree was built for. Another one in its
// place, as after a new image, cannot be expected to import from it.
type interpreter struct {
	Version string    `json:"version"`
	Path    string    `json:"path"` // of the file itself
	Size    int64     `json:"size"`
	Changed time.Time `json:"changed"`
}

// fill notes what the file is like now.
func (i *interpreter) fill() error {
	st, err := os.Stat(i.Path)
	if err != nil {
		return fmt.Errorf("find interpreter: %w", err)
	}
	i.Size, i.Changed = st.Size(), st.ModTime()
	return nil
}

func (i interpreter) same() bool {
	now := i
	return now.fill() == nil && now.Size == i.Size && now.Changed.Equal(i.Changed)
}

func (s *Store) recordPath(tree string) string {
	return filepath.Join(s.config.StateDir, tree+".json")
}

// write puts the record on disk, whole or not at all.
func (s *Store) write(r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode environment: %w", err)
	}
	next := s.recordPath(r.Tree) + ".next"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write down environment: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(next, s.recordPath(r.Tree))
	}
	if err != nil {
		return fmt.Errorf("write down environment: %w", err)
	}
	return nil
}

// touch writes down when an environment was used, for the next agent to know
// which are longest unused.
func (s *Store) touch(r record) {
	now := time.Now()
	if err := os.Chtimes(s.recordPath(r.Tree), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.logger.Debug("use of environment is not written down", "environment", r.Key, "error", err)
	}
}

func (s *Store) forget(tree string) {
	if err := os.Remove(s.recordPath(tree)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.logger.Debug("record of environment stays", "error", err)
	}
}

// load reads what an earlier agent has finished and removes all else.
func (s *Store) load() (map[string]*entry, error) {
	if err := os.MkdirAll(s.config.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("open environments: %w", err)
	}
	trees, links, err := s.site.List()
	if err != nil {
		return nil, fmt.Errorf("open environments: %w", err)
	}
	ready, kept := map[string]*entry{}, map[string]bool{}
	for key, tree := range links {
		e := s.read(key, tree)
		if e != nil && slices.Contains(trees, tree) {
			ready[key], kept[tree] = e, true
			continue
		}
		if err := s.site.Withdraw(key); err != nil {
			return nil, fmt.Errorf("open environments: %w", err)
		}
	}
	for _, tree := range trees {
		if kept[tree] {
			continue
		}
		if err := s.site.Discard(tree); err != nil {
			return nil, fmt.Errorf("open environments: %w", err)
		}
		s.logger.Info("unfinished environment removed", "environment", tree)
	}
	records, err := os.ReadDir(s.config.StateDir)
	if err != nil {
		return nil, fmt.Errorf("open environments: %w", err)
	}
	for _, f := range records {
		if tree, ok := strings.CutSuffix(f.Name(), ".json"); !ok || !kept[tree] {
			_ = os.Remove(filepath.Join(s.config.StateDir, f.Name())) // of no use, and of no harm
		}
	}
	return ready, nil
}

// read is the entry of a key that leads to a tree; nil when it cannot be used.
func (s *Store) read(key, tree string) *entry {
	text, err := os.ReadFile(s.recordPath(tree))
	if err != nil || !api.IsEnvironmentKey(key) {
		return nil
	}
	var r record
	if json.Unmarshal(text, &r) != nil || r.Key != key || r.Tree != tree || !r.Interpreter.same() {
		return nil
	}
	e := &entry{record: r, lastUsed: r.Built, touched: time.Now()}
	if st, err := os.Stat(s.recordPath(tree)); err == nil {
		e.lastUsed = st.ModTime()
	}
	return e
}
