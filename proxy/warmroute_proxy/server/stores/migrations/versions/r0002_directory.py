"""The directory: tenants beside their keys, a number for each kind of record by which proxies see changes, and who
changed what.

    directory_version  a number for each kind of record, which rises with each change of one
    tenant             tenants by name: the settings of a [[tenant]] of a config, without keys
    api_key            has the version of its last change
    audit              has the kind of what was changed, and how it was before and after; never a secret

A record's `version` is that of its kind when it was last changed, so that proxies read what is above the one they know.
A record that is gone stays as a row. A further kind of record adds a row to `directory_version`, and a table with a
column `version`.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
oldest_reader = "0002"

_STEPS = (
    "CREATE TABLE directory_version (kind text PRIMARY KEY, version bigint NOT NULL)",
    "INSERT INTO directory_version SELECT 'key', version FROM key_version",
    "INSERT INTO directory_version VALUES ('tenant', 0)",
    "DROP TABLE key_version",
    "ALTER TABLE api_key ADD COLUMN version bigint NOT NULL DEFAULT 0",
    "CREATE INDEX api_key_by_version ON api_key (version)",
    "CREATE INDEX api_key_by_tenant ON api_key (tenant, made_at)",
    """CREATE TABLE tenant (
        name text PRIMARY KEY, settings jsonb NOT NULL, version bigint NOT NULL,
        made_at timestamptz NOT NULL DEFAULT now(), changed_at timestamptz NOT NULL DEFAULT now(),
        removed_at timestamptz
    )""",
    "CREATE INDEX tenant_by_version ON tenant (version)",
    """ALTER TABLE audit
        ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        ADD COLUMN kind text NOT NULL DEFAULT 'key', ADD COLUMN old jsonb, ADD COLUMN new jsonb""",
    "ALTER TABLE audit ALTER COLUMN kind DROP DEFAULT",
    "CREATE INDEX audit_by_kind ON audit (kind, id)",
)


def upgrade() -> None:
    for step in _STEPS:
        op.execute(step)
