"""Adds the directory: besides API keys, also tenants, a version for each kind of record, and the audit log of changes.

    directory_version  the version of each kind of record, which rises with each change of a record
    tenant             tenants by name, with the settings of a [[tenant]]; without API keys
    api_key            gets a column for the version of a key's last change
    audit              gets columns for the kind of the changed record, and its old and new values; never a secret

When a record changes, the version of its kind rises and is stored in the record. So proxies read only records above the
version that they know. A deleted record stays as a row. A new kind of record needs a row in `directory_version`, and a
table with a column `version`.
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
