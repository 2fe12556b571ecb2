package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/orchestrator/config"
)

// ownConfigDB is where the settings of organisations are when nobody says it.
func (c Config) ownConfigDB() string { return filepath.Join(c.DataDir, "config", "config.db") }

// openConfigs opens the settings of organisations.
func (c Config) openConfigs(ctx context.Context) (*config.Store, error) {
	keys, err := config.ReadKeys(c.ConfigKeys)
	if err != nil {
		return nil, impossible(ctx, err)
	}
	// A directory that somebody names is there, or what was to be there is not
	// mounted: a new file in its place would look as if all were forgotten.
	if c.ConfigDB == c.ownConfigDB() {
		if err := os.MkdirAll(filepath.Dir(c.ConfigDB), 0o700); err != nil {
			return nil, impossible(ctx, fmt.Errorf("make directory of settings: %w", err))
		}
	}
	s, err := config.Open(ctx, config.Config{Path: c.ConfigDB, Keys: keys, Plaintext: c.ConfigPlain})
	if _, ofFile := errors.AsType[*fs.PathError](err); ofFile || errors.Is(err, config.ErrForeign) || errors.Is(err, config.ErrOtherKey) {
		return nil, impossible(ctx, err)
	}
	if err != nil {
		return nil, err // of a file that is ours, or might be: it may pass
	}
	return s, nil
}

// hidden are the arguments that keep from slots on this machine what is the
// orchestrator's own: secrets, and the file of settings with what SQLite makes
// beside it.
func (c Config) hidden() []string {
	var args []string
	for _, path := range []string{
		filepath.Join(c.DataDir, "config"), filepath.Join(c.DataDir, "local"), filepath.Join(c.DataDir, "homes"), filepath.Join(c.DataDir, "containers"), c.ConfigDB, c.ConfigDB + "-wal", c.ConfigDB + "-shm",
		c.ConfigKeys, c.TokenFile, c.OperatorTokenFile, c.BoundTokenFile, c.MetricsTokenFile,
	} {
		if path == "" {
			continue
		}
		if whole, err := filepath.Abs(path); err == nil {
			args = append(args, "--hide", whole)
		}
	}
	return args
}

// NewKey makes a key for the file of keys.
func NewKey() string { return config.NewKey() }

// Reseal seals the variables of sandbox configs with the newest key, those
// that another one has sealed or none, and returns how many. An orchestrator
// may be serving them meanwhile; for as long as it does not know the newest key,
// it cannot read them.
func Reseal(ctx context.Context, c Config) (n int, err error) {
	if c.ConfigKeys == "" {
		return 0, fmt.Errorf("%w: reseal: name the keys by --config-key-file", ErrUsage)
	}
	s, err := c.openConfigs(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()
	return s.Reseal(ctx)
}
