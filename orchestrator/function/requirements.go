package function

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"berth/sandboxd/api"
	"berth/slots"
)

// maxRequirementsFile bounds a requirements.txt, in bytes.
const maxRequirementsFile = 1 << 20

// requirementsFile reads the requirements.txt of a directory below the home, if
// there is one. It may hold names with versions, nothing else. Runs write to
// the home: no link leads out of it, and what is no file is none.
func requirementsFile(home, below string) ([]api.Requirement, error) {
	if home == "" {
		return nil, nil
	}
	bad := func(err error) error {
		return slots.Errorf(slots.KindBadRequest, "requirements.txt of the sandbox_dir cannot be read: %w", err)
	}
	root, err := os.OpenRoot(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, bad(err)
	}
	defer func() { _ = root.Close() }() // it was only read
	f, err := root.OpenFile(filepath.Join(below, "requirements.txt"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, bad(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, bad(errors.New("it is no file"))
	}
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
