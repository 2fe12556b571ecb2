package local

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/orchestrator/backend"
)

// state is what the next orchestrator has to know of a container. It is
// written before its process is started, when the process is there, and when
// that has said where it serves. The token is not in it.
type state struct {
	Spec    backend.Spec `json:"spec"`
	Started time.Time    `json:"started"`
	Process identity     `json:"process"`           // zero: none, or it was just being started
	Address string       `json:"address,omitempty"` // where the process said it serves, as 127.0.0.1:1234
	Wish    string       `json:"wish,omitempty"`    // where the one before it served, and it shall too
	LogFrom int64        `json:"log_from"`          // where in the log the process's own lines begin
	Crashes int          `json:"crashes,omitempty"` // in a row
	Stop    bool         `json:"stop,omitempty"`    // it is being stopped: whoever comes next goes on
	Ended   string       `json:"ended,omitempty"`   // why it was given up
}

// directory is the place of one container.
type directory string

func (d directory) join(name string) string { return filepath.Join(string(d), name) }
func (d directory) dataDir() string         { return d.join("data") }
func (d directory) log() string             { return d.join("log") }
func (d directory) token() string           { return d.join("token") }

// load reads the state. fs.ErrNotExist means that there is no container.
func (d directory) load() (state, error) {
	text, err := os.ReadFile(d.join("state"))
	if err != nil {
		return state{}, fmt.Errorf("read state: %w", err)
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return state{}, fmt.Errorf("read state %s: %w", d.join("state"), err)
	}
	return s, nil
}

// save replaces the state in one step.
func (d directory) save(s state) error {
	text, err := json.Marshal(s)
	if err == nil {
		err = d.replace("state", text)
	}
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// replace writes a file that only we can read, whole or not at all.
func (d directory) replace(name string, text []byte) error {
	f, err := os.CreateTemp(string(d), "."+name+"-") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), d.join(name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// readToken returns the container's token, which it makes at the first time.
func (d directory) readToken() (string, error) {
	text, err := os.ReadFile(d.token())
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(rand.Text())
		err = d.replace("token", append(text, '\n'))
	}
	token := strings.TrimSpace(string(text))
	if err == nil && token == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return token, nil
}

// errLocked means that another orchestrator looks after the container.
var errLocked = errors.New("another orchestrator looks after the container")

// lock makes us the one that looks after the container, until the file is
// closed or our process ends. It is errLocked when there is one already, and
// fs.ErrNotExist when the container is gone, which only os.O_CREATE among the
// flags may begin.
func (d directory) lock(flags int) (*os.File, error) {
	f, err := os.OpenFile(d.join("lock"), os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock container: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errLocked
	}
	if err == nil {
		// Whoever had it may have removed the directory, and the file in it.
		err = sameFile(f, d.join("lock"))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock container: %w", err)
	}
	return f, nil
}

func sameFile(f *os.File, path string) error {
	there, err := os.Stat(path)
	if err != nil {
		return err
	}
	held, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(there, held) {
		return fs.ErrNotExist
	}
	return nil
}

// remove removes everything of the container, its lock last: who waits for
// that finds nothing.
func (d directory) remove() error {
	// Without a state nobody adopts what is half removed.
	err := os.Remove(d.join("state"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	entries, listErr := os.ReadDir(string(d))
	err = errors.Join(err, listErr)
	for _, entry := range entries {
		if entry.Name() != "lock" {
			err = errors.Join(err, RemoveTree(d.join(entry.Name())))
		}
	}
	if err == nil {
		err = RemoveTree(string(d))
	}
	if err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}

// RemoveTree is os.RemoveAll, also of directories that a slot has closed to
// its own user, and of what a process still writes to that is about to end.
func RemoveTree(path string) error {
	var err error
	for range 5 {
		if err = os.RemoveAll(path); err == nil {
			return nil
		}
		opened := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				err = os.Chmod(name, 0o700) //nolint:gosec // it is removed next
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		err = errors.Join(err, opened)
	}
	return err
}
