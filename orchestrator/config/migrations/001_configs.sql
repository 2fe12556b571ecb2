CREATE TABLE organizations (
    id               TEXT    NOT NULL PRIMARY KEY,
    privileged_tools INTEGER NOT NULL DEFAULT 0 CHECK (privileged_tools IN (0, 1))
) STRICT;

CREATE TABLE sandbox_configs (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of creation
    id              TEXT NOT NULL UNIQUE,
    organization_id TEXT NOT NULL,
    type            TEXT NOT NULL CHECK (type IN ('local', 'isolated')),
    config          TEXT NOT NULL, -- canonical
    fingerprint     TEXT NOT NULL,
    created_at      TEXT NOT NULL,
    updated_at      TEXT NOT NULL,
    UNIQUE (organization_id, type)
) STRICT;

CREATE TABLE environment_variables (
    seq               INTEGER PRIMARY KEY AUTOINCREMENT,
    id                TEXT NOT NULL UNIQUE,
    sandbox_config_id TEXT NOT NULL REFERENCES sandbox_configs (id) ON DELETE CASCADE,
    key               TEXT NOT NULL,
    sealed            TEXT NOT NULL,
    description       TEXT NOT NULL DEFAULT '',
    created_at        TEXT NOT NULL,
    updated_at        TEXT NOT NULL,
    UNIQUE (sandbox_config_id, key)
) STRICT;
