package rollout

import (
	"embed"
	"fmt"
	"path"
)

// Program is a small program that does not pass its tests, and the edit that
// mends it.
type Program struct {
	Name   string
	Source string // program.sh, broken
	Test   string // test.sh: exit status 0 only when every case passes
	Cases  string // cases.txt, which test.sh reads
	Edit   string // edit.sed, a sed script that mends program.sh
}

//go:embed programs
var programs embed.FS

// Programs lists the programs by name.
func Programs() ([]Program, error) {
	entries, err := programs.ReadDir("programs")
	if err != nil {
		return nil, fmt.Errorf("list programs: %w", err)
	}
	var out []Program
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		p := Program{Name: entry.Name()}
		dir := path.Join("programs", p.Name)
		for name, text := range map[string]*string{
			path.Join(dir, "program.sh"): &p.Source,
			path.Join(dir, "cases.txt"):  &p.Cases,
			path.Join(dir, "edit.sed"):   &p.Edit,
			"programs/test.sh":           &p.Test,
		} {
			content, err := programs.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("read program %s: %w", p.Name, err)
			}
			*text = string(content)
		}
		out = append(out, p)
	}
	return out, nil
}
