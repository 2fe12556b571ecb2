package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
)

// openV1 makes the tree's directory in every v1 hierarchy that allows it.
// Hierarchies mounted together share one directory.
func openV1(cfg Config, k kernel, p place) (*Tree, string, error) {
	t := &Tree{k: k, name: cfg.Name, version: 1, homes: map[string]string{}, groups: map[string]*Group{}}
	var path string
	made := map[string]error{}
	for _, controller := range []string{memory, pids, cpu, cpuacct, freezer} {
		s, ok := p.v1(controller)
		if !ok {
			t.lack(controller, "", errNoMount)
			continue
		}
		if path == "" {
			path = s.dir
		}
		err, done := made[s.dir]
		if !done {
			err = isOurs(k, s.dir)
			if err == nil {
				err = k.mkdir(filepath.Join(s.dir, cfg.Name))
			}
			made[s.dir] = err
		}
		if err != nil {
			t.lack(controller, s.dir, err)
			continue
		}
		t.homes[controller] = s.dir
		// The tree keeps its usual cpu.shares: all slots together weigh as much
		// as one process beside them. With more, one busy slot starves the agent.
	}
	if t.homes[memory] != "" || t.homes[pids] != "" {
		return t, path, nil
	}
	errs := []error{errNothing}
	for _, dir := range t.dirs() {
		errs = append(errs, k.rmdir(dir))
	}
	for _, m := range t.missing[:min(2, len(t.missing))] { // memory and pids: nothing else decides
		errs = append(errs, fmt.Errorf("%s: %w", m.How, m.Err))
	}
	return nil, path, errors.Join(errs...)
}

func (t *Tree) lack(controller, path string, err error) {
	t.missing = append(t.missing, Attempt{How: controller, Path: path, Err: err, Mend: mend(fmt.Sprintf("v%d", t.version), err)})
}
