package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/slots"
)

// Record is what of a slot must survive a restart of the agent.
type Record struct {
	Tenancy    slots.Tenancy `json:"tenancy"`
	Generation uint64        `json:"generation"`
	// ResetDue is true from the moment a reset is needed until it is proven,
	// so that a crash in between cannot hand out what the last tenant left.
	ResetDue bool `json:"reset_due"`
}

// Store keeps one Record per slot. Save replaces it as a whole or not at all.
type Store interface {
	// Load returns the zero Record for a slot that has none.
	Load(slotID string) (Record, error)
	Save(slotID string, r Record) error
}

// FileStore is the Store in a directory: one file <slot>.json each, replaced
// by rename. It survives a crash of the process; after a crash of the machine
// the container and its slots are gone anyway.
type FileStore struct{ dir string }

// OpenFileStore makes the directory, mode 0700, unless it is there.
func OpenFileStore(dir string) (*FileStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open slot store: %w", err)
	}
	return &FileStore{dir}, nil
}

// Load reads the slot's file.
func (s *FileStore) Load(slotID string) (Record, error) {
	var r Record
	text, err := os.ReadFile(s.path(slotID))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("load slot: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return Record{}, fmt.Errorf("load slot: parse %s: %w", s.path(slotID), err)
	}
	return r, nil
}

// Save replaces the slot's file. The slot's runner and its lease calls hold
// the slot's mutex here, so two never write the same temporary file.
func (s *FileStore) Save(slotID string, r Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save slot: %w", err)
	}
	next := s.path(slotID) + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return fmt.Errorf("save slot: %w", err)
	}
	if err := os.Rename(next, s.path(slotID)); err != nil {
		return fmt.Errorf("save slot: %w", err)
	}
	return nil
}

func (s *FileStore) path(slotID string) string { return filepath.Join(s.dir, slotID+".json") }
