"""Two more loss classes in the sums. In the rows of an older proxy they are 0.

usage_hour, usage_session  `not_computed_yet` and `forgotten`
"""

from alembic import op

revision = "0006"
down_revision = "0005"
oldest_reader = "0005"


def upgrade() -> None:
    for table in ("usage_hour", "usage_session"):
        for name in ("not_computed_yet", "forgotten"):
            op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {name} bigint NOT NULL DEFAULT 0")
