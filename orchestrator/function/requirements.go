package function

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/sandboxd/api"
	"berth/slots"
)

// maxRequirementsFile bounds a requirements.txt, in bytes.
const maxRequirementsFile = 1 << 20

// requirementsFile reads the requirements.txt of a directory on this host, if
// there is one. It may hold names with versions, nothing else.
func requirementsFile(dir string) ([]api.Requirement, error) {
	if dir == "" {
		return nil, nil
	}
	f, err := os.Open(filepath.Join(dir, "requirements.txt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, slots.Errorf(slots.KindBadRequest, "requirements.txt of the sandbox_dir cannot be read: %w", err)
	}
	defer f.Close()
	return readRequirements(io.LimitReader(f, maxRequirementsFile))
}

func readRequirements(from io.Reader) ([]api.Requirement, error) {
	var all []api.Requirement
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), " #")
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, version := line, ""
		if at := strings.IndexAny(line, "=<>!~"); at >= 0 {
			name, version = strings.TrimSpace(line[:at]), strings.TrimSpace(line[at:])
		}
		all = append(all, api.Requirement{Name: name, Version: version})
		if _, err := (api.EnvironmentSpec{Language: api.LanguagePython, Requirements: all[len(all)-1:]}).Normalized(); err != nil {
			return nil, slots.Errorf(slots.KindBadRequest, "line %d of requirements.txt is not a name and a version: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, slots.Errorf(slots.KindBadRequest, "requirements.txt cannot be read: %w", err)
	}
	return all, nil
}
