package config

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"berth/orchestrator/poolapi"
	"berth/slots"
)

// prefixVariable is what the IDs of variables begin with.
const prefixVariable = "sandbox-env-"

// maxVariable bounds key and value of one variable together, in bytes: no
// process can be started with a longer one.
const maxVariable = 128<<10 - 2

var variableKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckVariable refuses what no process can have in its environment. The error
// names the key, never the value.
func CheckVariable(key, value string) error {
	if !variableKey.MatchString(key) {
		return slots.Errorf(slots.KindBadRequest, "%.80q is no key of a variable: want a letter or _, then letters, digits and _", key)
	}
	if strings.ContainsRune(value, 0) {
		return slots.Errorf(slots.KindBadRequest, "the value of %.80s holds a zero byte", key)
	}
	if n := len(key) + len(value); n > maxVariable {
		return slots.Errorf(slots.KindBadRequest, "%.80s and its value have %d bytes, a process can have %d", key, n, maxVariable)
	}
	return nil
}

// Variable is one variable of a sandbox config.
type Variable struct {
	ID, ConfigID, Organization string
	Key                        string
	Value                      Secret // empty unless it was asked for
	Description                string
	CreatedAt, UpdatedAt       time.Time
}

// kept is a variable as it is stored. It does not leave this package: package
// fmt prints what an unexported field holds, also a Secret.
type kept struct {
	Variable
	text string // sealed, or as it is
}

const variableColumns = "v.id, v.sandbox_config_id, c.organization_id, v.key, v.sealed, v.description, v.created_at, v.updated_at"

const variableTables = "environment_variables v JOIN sandbox_configs c ON c.id = v.sandbox_config_id"

func scanVariable(from row) (kept, error) {
	var v kept
	var created, updated string
	if err := from.Scan(&v.ID, &v.ConfigID, &v.Organization, &v.Key, &v.text, &v.Description, &created, &updated); err != nil {
		return kept{}, err
	}
	return v, readTimes(map[*time.Time]string{&v.CreatedAt: created, &v.UpdatedAt: updated})
}

// place is what the value of a variable is bound to. Its ID stays when it is
// given another key.
func place(id string) string { return "environment variable " + id }

// seal makes of a value what is stored.
func (s *Store) seal(id string, value Secret) (string, error) {
	if s.config.Keys.Empty() && s.config.Plaintext {
		return prefixPlain + value.Reveal(), nil
	}
	return s.config.Keys.seal(place(id), value)
}

// PutVariable makes the variable of that key, or replaces its value and
// description. Without a key to seal the value with it is ErrNoKey.
func (s *Store) PutVariable(ctx context.Context, organization, configID string, want poolapi.EnvironmentVariableRequest) (v Variable, err error) {
	if err := CheckVariable(want.Key, want.Value); err != nil {
		return Variable{}, err
	}
	err = s.within(ctx, func(tx *sql.Tx) error {
		if _, err := getSandbox(ctx, tx, organization, configID); err != nil {
			return err
		}
		id := prefixVariable + uuid.NewString()
		err := tx.QueryRowContext(ctx, "SELECT id FROM environment_variables WHERE sandbox_config_id = ? AND key = ?", configID, want.Key).Scan(&id)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("read variable: %w", err)
		}
		sealed, err := s.seal(id, Secret(want.Value))
		if err != nil {
			return err
		}
		at := now()
		_, err = tx.ExecContext(ctx, `INSERT INTO environment_variables (id, sandbox_config_id, key, sealed, description, created_at, updated_at)
			VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sandbox_config_id, key)
			DO UPDATE SET sealed = excluded.sealed, description = excluded.description, updated_at = excluded.updated_at`,
			id, configID, want.Key, sealed, want.Description, at, at)
		if err != nil {
			return fmt.Errorf("write variable: %w", err)
		}
		k, err := getVariable(ctx, tx, organization, id)
		v = k.Variable
		return err
	})
	return v, err
}

func getVariable(ctx context.Context, from asker, organization, id string) (kept, error) {
	v, err := scanVariable(from.QueryRowContext(ctx,
		"SELECT "+variableColumns+" FROM "+variableTables+" WHERE c.organization_id = ? AND v.id = ?", organization, id))
	if errors.Is(err, sql.ErrNoRows) {
		return kept{}, slots.Errorf(slots.KindNotFound, "there is no environment variable %.80q", id)
	}
	if err != nil {
		return kept{}, fmt.Errorf("read variable: %w", err)
	}
	return v, nil
}

// Variables lists the variables of a config in the order in which they were
// made: all of them, unless the page has a limit. after is the ID to go on
// with, "" on the last page. Values are there only when they are to be
// revealed.
func (s *Store) Variables(ctx context.Context, organization, configID string, page Page, reveal bool) (list []Variable, after string, err error) {
	if page, err = page.bounded(math.MaxInt32); err != nil {
		return nil, "", err
	}
	if _, err := s.Get(ctx, organization, configID); err != nil {
		return nil, "", err
	}
	if page.After != "" {
		if _, err := getVariable(ctx, s.db, organization, page.After); err != nil {
			return nil, "", err
		}
	}
	rows, err := s.db.QueryContext(ctx, `SELECT `+variableColumns+` FROM `+variableTables+`
		WHERE c.organization_id = ?1 AND c.id = ?2
		AND v.seq > coalesce((SELECT seq FROM environment_variables WHERE id = ?3), 0) ORDER BY v.seq LIMIT ?4`,
		organization, configID, page.After, page.Limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("list variables: %w", err)
	}
	all, err := collect(rows, scanVariable)
	if err != nil {
		return nil, "", fmt.Errorf("list variables: %w", err)
	}
	if len(all) > page.Limit {
		all = all[:page.Limit]
		after = all[len(all)-1].ID
	}
	list = make([]Variable, len(all))
	for i, v := range all {
		if reveal {
			if v.Value, err = s.config.Keys.open(place(v.ID), v.text); err != nil {
				return nil, "", slots.Errorf(slots.KindInternal, "variable %.80s: %w", v.Key, err)
			}
		}
		list[i] = v.Variable
	}
	return list, after, nil
}

// PatchVariable changes what the patch says. A key that another variable of
// the config has is slots.KindConflict.
func (s *Store) PatchVariable(ctx context.Context, organization, id string, patch poolapi.EnvironmentVariablePatch) (v Variable, err error) {
	err = s.within(ctx, func(tx *sql.Tx) error {
		have, err := getVariable(ctx, tx, organization, id)
		if err != nil {
			return err
		}
		key, value := have.Key, ""
		if patch.Key != nil {
			key = *patch.Key
		}
		if patch.Value != nil {
			value = *patch.Value
			if have.text, err = s.seal(id, Secret(value)); err != nil {
				return err
			}
		}
		if err := CheckVariable(key, value); err != nil {
			return err
		}
		if patch.Description != nil {
			have.Description = *patch.Description
		}
		taken := 0
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM environment_variables WHERE sandbox_config_id = ? AND key = ? AND id <> ?", have.ConfigID, key, id).Scan(&taken); err != nil {
			return fmt.Errorf("read variables: %w", err)
		}
		if taken > 0 {
			return slots.Errorf(slots.KindConflict, "the sandbox config has another variable %.80s", key)
		}
		if _, err := tx.ExecContext(ctx, "UPDATE environment_variables SET key = ?, sealed = ?, description = ?, updated_at = ? WHERE id = ?",
			key, have.text, have.Description, now(), id); err != nil {
			return fmt.Errorf("write variable: %w", err)
		}
		k, err := getVariable(ctx, tx, organization, id)
		v = k.Variable
		return err
	})
	return v, err
}

// DeleteVariable removes a variable.
func (s *Store) DeleteVariable(ctx context.Context, organization, id string) error {
	done, err := s.db.ExecContext(ctx, `DELETE FROM environment_variables WHERE id = ?1
		AND sandbox_config_id IN (SELECT id FROM sandbox_configs WHERE organization_id = ?2)`, id, organization)
	if err != nil {
		return fmt.Errorf("delete variable: %w", err)
	}
	if n, err := done.RowsAffected(); err != nil {
		return fmt.Errorf("delete variable: %w", err)
	} else if n == 0 {
		return slots.Errorf(slots.KindNotFound, "there is no environment variable %.80q", id)
	}
	return nil
}

// Environment is the variables of a config by key, for a run.
func (s *Store) Environment(ctx context.Context, organization, configID string) (map[string]Secret, error) {
	list, _, err := s.Variables(ctx, organization, configID, Page{}, true)
	if err != nil {
		return nil, err
	}
	env := make(map[string]Secret, len(list))
	for _, v := range list {
		env[v.Key] = v.Value
	}
	return env, nil
}

// Reseal seals every value with the newest key that it is not sealed with yet,
// also those that were stored as they are, and returns how many there were. It
// is all or nothing: when one value does not open, nothing is changed.
func (s *Store) Reseal(ctx context.Context) (n int, err error) {
	if s.config.Keys.Empty() {
		return 0, ErrNoKey
	}
	err = s.within(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT "+variableColumns+" FROM "+variableTables)
		if err != nil {
			return fmt.Errorf("list variables: %w", err)
		}
		all, err := collect(rows, scanVariable)
		if err != nil {
			return fmt.Errorf("list variables: %w", err)
		}
		for _, v := range all {
			if s.config.Keys.current(v.text) {
				continue
			}
			value, err := s.config.Keys.open(place(v.ID), v.text)
			if err != nil {
				return slots.Errorf(slots.KindInternal, "variable %.80s of %s: %w", v.Key, v.ConfigID, err)
			}
			sealed, err := s.seal(v.ID, value)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE environment_variables SET sealed = ? WHERE id = ?", sealed, v.ID); err != nil {
				return fmt.Errorf("write variable: %w", err)
			}
			n++
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("reseal: %w", err)
	}
	if n > 0 {
		// So that no value is left as it was in what SQLite writes beside the file.
		if _, err := s.db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
			return n, fmt.Errorf("reseal: checkpoint: %w", err)
		}
	}
	return n, nil
}
