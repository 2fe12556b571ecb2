package config

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"modernc.org/sqlite" // also the driver
	sqlite3 "modernc.org/sqlite/lib"

	"berth/slots"
)

// Config is where a Store is and how it keeps values.
type Config struct {
	Path      string // of the SQLite file, which is made when it is not there; required
	Keys      Keys   // seal values and open them
	Plaintext bool   // without keys, store values as they are instead of refusing them
}

// Store is the settings of all organisations. All methods may be called at
// once.
type Store struct {
	db     *sql.DB
	config Config
}

// busyTimeout is how long one process waits for another that writes.
const busyTimeout = 10 * time.Second

// ErrForeign is a file that is no SQLite file, or that a newer program has
// written.
var ErrForeign = errors.New("not this program's file")

// ErrOtherKey is a file with values that none of the keys opens.
var ErrOtherKey = errors.New("its values were sealed with another key")

// Open opens the file, and brings its tables to the form of this program. One
// that it cannot bring there is ErrForeign. One with values that the keys do
// not open is ErrOtherKey: else it would be learned of run by run, and new
// values be sealed so that whoever has the right key does not open those.
func Open(ctx context.Context, config Config) (_ *Store, err error) {
	path, err := filepath.Abs(config.Path)
	if err != nil {
		return nil, fmt.Errorf("open settings: %w", err)
	}
	// What SQLite makes beside it has the same mode.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open settings: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("open settings: %w", err)
	}
	query := url.Values{"_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "secure_delete(1)",
	}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}).String())
	if err != nil {
		return nil, fmt.Errorf("open settings: %w", err)
	}
	s := &Store{db: db, config: config}
	err = s.migrate(ctx)
	if err == nil {
		err = s.checkKeys(ctx)
	}
	if err != nil {
		if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code() == sqlite3.SQLITE_NOTADB {
			err = fmt.Errorf("%w: %w", ErrForeign, err)
		}
		return nil, errors.Join(fmt.Errorf("open settings %s: %w", path, err), db.Close())
	}
	return s, nil
}

// Close closes the file.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close settings: %w", err)
	}
	return nil
}

// migrations are the steps by which the tables came to their form, each a file
// whose name begins with its number. A step that was released never changes.
//
//go:embed migrations/*.sql
var migrations embed.FS

// migrate takes the steps that the file has not taken.
func (s *Store) migrate(ctx context.Context) error {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	slices.Sort(names)
	return s.within(ctx, func(tx *sql.Tx) error {
		var taken int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&taken); err != nil {
			return fmt.Errorf("read version: %w", err)
		}
		if taken > len(names) {
			return fmt.Errorf("it has version %d, and this program knows %d: a newer one has written it: %w", taken, len(names), ErrForeign)
		}
		for i, name := range names[taken:] {
			step, err := fs.ReadFile(migrations, name)
			if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			if _, err := tx.ExecContext(ctx, string(step)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", taken+i+1)); err != nil {
				return fmt.Errorf("%s: write version: %w", name, err)
			}
		}
		return nil
	})
}

// within does all of it or nothing.
func (s *Store) within(ctx context.Context, do func(*sql.Tx) error) (err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback() // it fails where nothing is left to take back
		}
	}()
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// row is what has one row's columns.
type row interface{ Scan(into ...any) error }

// Bounds of a page.
const (
	defaultPage = 50
	maxPage     = 1000
)

// Page says which part of a list is meant. The zero Page is the first part.
type Page struct {
	After string // the ID of the last one that is known; "": from the first
	Limit int    // at most that many; 0: as the list has it
}

// bounded is the page with its limit.
func (p Page) bounded(byDefault int) (Page, error) {
	if p.Limit == 0 {
		p.Limit = byDefault
	}
	if p.Limit < 0 || p.Limit > maxPage && p.Limit != byDefault {
		return p, slots.Errorf(slots.KindBadRequest, "limit must be 1 to %d, got %d", maxPage, p.Limit)
	}
	return p, nil
}

var organizationID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// CheckOrganization refuses what cannot be the name of an organisation.
func CheckOrganization(id string) error {
	if !organizationID.MatchString(id) {
		return slots.Errorf(slots.KindBadRequest, "%.140q names no organization: want a letter or digit, then at most 127 of those and of . _ -", id)
	}
	return nil
}

// now is the time as it is stored.
func now() string { return time.Now().UTC().Format(time.RFC3339Nano) }

// readTimes reads what now has written.
func readTimes(of map[*time.Time]string) error {
	for into, text := range of {
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return fmt.Errorf("read time: %w", err)
		}
		*into = t
	}
	return nil
}
