package config

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"berth/orchestrator/poolapi"
	"berth/slots"
)

// prefixSandbox is what the IDs of sandbox configs begin with.
const prefixSandbox = "sandbox-"

const sandboxColumns = "id, type, organization_id, config, fingerprint, created_at, updated_at"

func scanSandbox(from row) (poolapi.SandboxConfig, error) {
	var c poolapi.SandboxConfig
	var settings, created, updated string
	if err := from.Scan(&c.ID, &c.Type, &c.OrganizationID, &settings, &c.Fingerprint, &created, &updated); err != nil {
		return poolapi.SandboxConfig{}, err
	}
	c.Config = json.RawMessage(settings)
	return c, readTimes(map[*time.Time]string{&c.CreatedAt: created, &c.UpdatedAt: updated})
}

// Put makes the organisation's config of the type, or replaces it, which keeps
// its ID and its variables.
func (s *Store) Put(ctx context.Context, organization string, of poolapi.SandboxType, settings json.RawMessage) (poolapi.SandboxConfig, error) {
	return s.put(ctx, organization, of, settings, `DO UPDATE SET
		updated_at = CASE WHEN config = excluded.config THEN updated_at ELSE excluded.updated_at END,
		config = excluded.config, fingerprint = excluded.fingerprint`)
}

// Default is the organisation's config of the type; when there is none, it is
// made, of nothing but defaults.
func (s *Store) Default(ctx context.Context, organization string, of poolapi.SandboxType) (poolapi.SandboxConfig, error) {
	of, err := ParseType(of)
	if err != nil {
		return poolapi.SandboxConfig{}, err
	}
	c, err := scanSandbox(s.db.QueryRowContext(ctx,
		"SELECT "+sandboxColumns+" FROM sandbox_configs WHERE organization_id = ? AND type = ?", organization, of))
	if errors.Is(err, sql.ErrNoRows) {
		return s.put(ctx, organization, of, nil, "DO UPDATE SET id = id") // so that it is returned if another one made it meanwhile
	}
	if err != nil {
		return poolapi.SandboxConfig{}, fmt.Errorf("read sandbox config: %w", err)
	}
	return c, nil
}

func (s *Store) put(ctx context.Context, organization string, of poolapi.SandboxType, settings json.RawMessage, conflict string) (poolapi.SandboxConfig, error) {
	of, err := ParseType(of)
	if err == nil {
		err = CheckOrganization(organization)
	}
	if err != nil {
		return poolapi.SandboxConfig{}, err
	}
	canonical, err := Canonical(of, settings)
	if err != nil {
		return poolapi.SandboxConfig{}, err
	}
	fingerprint, err := Fingerprint(organization, of, canonical)
	if err != nil {
		return poolapi.SandboxConfig{}, err
	}
	at := now()
	c, err := scanSandbox(s.db.QueryRowContext(ctx, `INSERT INTO sandbox_configs (`+sandboxColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (organization_id, type) `+conflict+` RETURNING `+sandboxColumns,
		prefixSandbox+uuid.NewString(), of, organization, string(canonical), fingerprint, at, at))
	if err != nil {
		return poolapi.SandboxConfig{}, fmt.Errorf("write sandbox config: %w", err)
	}
	return c, nil
}

// Get finds a config of the organisation. There being none is
// slots.KindNotFound, also when it is another organisation's.
func (s *Store) Get(ctx context.Context, organization, id string) (poolapi.SandboxConfig, error) {
	return getSandbox(ctx, s.db, organization, id)
}

// asker is a database or a transaction.
type asker interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func getSandbox(ctx context.Context, from asker, organization, id string) (poolapi.SandboxConfig, error) {
	c, err := scanSandbox(from.QueryRowContext(ctx,
		"SELECT "+sandboxColumns+" FROM sandbox_configs WHERE organization_id = ? AND id = ?", organization, id))
	if errors.Is(err, sql.ErrNoRows) {
		return poolapi.SandboxConfig{}, slots.Errorf(slots.KindNotFound, "there is no sandbox config %.80q", id)
	}
	if err != nil {
		return poolapi.SandboxConfig{}, fmt.Errorf("read sandbox config: %w", err)
	}
	return c, nil
}

// List lists the configs of the organisation in the order in which they were
// made, those of one type only unless that is "". A page has 50 of them unless
// it says otherwise. after is the ID to go on with, "" on the last page.
func (s *Store) List(ctx context.Context, organization string, of poolapi.SandboxType, page Page) (list []poolapi.SandboxConfig, after string, err error) {
	if page, err = page.bounded(defaultPage); err != nil {
		return nil, "", err
	}
	if of != "" {
		if of, err = ParseType(of); err != nil {
			return nil, "", err
		}
	}
	if page.After != "" {
		if _, err := s.Get(ctx, organization, page.After); err != nil {
			return nil, "", err
		}
	}
	rows, err := s.db.QueryContext(ctx, `SELECT `+sandboxColumns+` FROM sandbox_configs
		WHERE organization_id = ?1 AND (?2 = '' OR type = ?2)
		AND seq > coalesce((SELECT seq FROM sandbox_configs WHERE id = ?3), 0) ORDER BY seq LIMIT ?4`,
		organization, of, page.After, page.Limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("list sandbox configs: %w", err)
	}
	list, err = collect(rows, scanSandbox)
	if err != nil {
		return nil, "", fmt.Errorf("list sandbox configs: %w", err)
	}
	if len(list) > page.Limit {
		list = list[:page.Limit]
		after = list[len(list)-1].ID
	}
	return list, after, nil
}

// collect reads all rows.
func collect[T any](rows *sql.Rows, scan func(row) (T, error)) ([]T, error) {
	defer func() { _ = rows.Close() }() // what went wrong, Err says
	list := []T{}
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, rows.Err()
}

// Patch changes some settings of a config; one that is null goes back to its
// default. The type, if it is said, must be the one that the config has.
func (s *Store) Patch(ctx context.Context, organization, id string, patch poolapi.SandboxConfigRequest) (c poolapi.SandboxConfig, err error) {
	of := patch.Type
	if of != "" {
		if of, err = ParseType(of); err != nil {
			return c, err
		}
	}
	err = s.within(ctx, func(tx *sql.Tx) error {
		have, err := getSandbox(ctx, tx, organization, id)
		if err != nil {
			return err
		}
		if of == "" {
			of, _ = otherSettings(have.Type, patch.Config)
		}
		if of != "" && of != have.Type {
			return slots.Errorf(slots.KindBadRequest, "Mismatched type for sandbox config update: tried to update sandbox config of type %s with config of type %s", have.Type, of)
		}
		merged, err := merge(have.Config, patch.Config)
		if err != nil {
			return err
		}
		canonical, err := Canonical(have.Type, merged)
		if err != nil {
			return err
		}
		fingerprint, err := Fingerprint(organization, have.Type, canonical)
		if err != nil {
			return err
		}
		c, err = scanSandbox(tx.QueryRowContext(ctx, `UPDATE sandbox_configs SET
			updated_at = CASE WHEN config = ?1 THEN updated_at ELSE ?3 END, config = ?1, fingerprint = ?2
			WHERE id = ?4 RETURNING `+sandboxColumns, string(canonical), fingerprint, now(), id))
		if err != nil {
			return fmt.Errorf("write sandbox config: %w", err)
		}
		return nil
	})
	return c, err
}

// Delete removes a config, and its variables with it.
func (s *Store) Delete(ctx context.Context, organization, id string) error {
	done, err := s.db.ExecContext(ctx, "DELETE FROM sandbox_configs WHERE organization_id = ? AND id = ?", organization, id)
	if err != nil {
		return fmt.Errorf("delete sandbox config: %w", err)
	}
	if n, err := done.RowsAffected(); err != nil {
		return fmt.Errorf("delete sandbox config: %w", err)
	} else if n == 0 {
		return slots.Errorf(slots.KindNotFound, "there is no sandbox config %.80q", id)
	}
	return nil
}
