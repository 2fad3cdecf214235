"""The cost of the turns of each API key, by hour.

    key_hour  sums of prices, in billionths of a USD, by key id and hour (unix seconds of its start)

As in `usage_hour`, the primary key contains the proxy, so no proxy waits for another proxy's transaction.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
oldest_reader = "0003"

_TABLE = """
CREATE TABLE key_hour (
    key text NOT NULL, hour bigint NOT NULL, proxy text NOT NULL, nanousd bigint NOT NULL,
    PRIMARY KEY (key, hour, proxy)
)
"""


def upgrade() -> None:
    op.execute(_TABLE)
