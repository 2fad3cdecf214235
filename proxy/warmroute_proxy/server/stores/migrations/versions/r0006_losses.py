"""Two more loss classes (reasons why tokens were not cached) in the sums. They are 0 in the rows of an older proxy.

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
