package config

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"berth/orchestrator/poolapi"
)

// Organization is what is set about the organisation. There is one of every
// name.
func (s *Store) Organization(ctx context.Context, id string) (poolapi.Organization, error) {
	if err := CheckOrganization(id); err != nil {
		return poolapi.Organization{}, err
	}
	o := poolapi.Organization{ID: id}
	err := s.db.QueryRowContext(ctx, "SELECT privileged_tools FROM organizations WHERE id = ?", id).Scan(&o.PrivilegedTools)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return poolapi.Organization{}, fmt.Errorf("read organization: %w", err)
	}
	return o, nil
}

// PatchOrganization sets what the patch says.
func (s *Store) PatchOrganization(ctx context.Context, id string, patch poolapi.OrganizationPatch) (poolapi.Organization, error) {
	if err := CheckOrganization(id); err != nil {
		return poolapi.Organization{}, err
	}
	if patch.PrivilegedTools != nil {
		_, err := s.db.ExecContext(ctx, `INSERT INTO organizations (id, privileged_tools) VALUES (?, ?)
			ON CONFLICT (id) DO UPDATE SET privileged_tools = excluded.privileged_tools`, id, *patch.PrivilegedTools)
		if err != nil {
			return poolapi.Organization{}, fmt.Errorf("write organization: %w", err)
		}
	}
	return s.Organization(ctx, id)
}
