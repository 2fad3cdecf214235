"""The oldest revision whose proxies can use the schema. A proxy of an older revision refuses the database.

schema_readers  one row: the oldest revision whose proxies can use the present schema
"""

from alembic import op

revision = "0005"
down_revision = "0004"
oldest_reader = "0005"


def upgrade() -> None:
    """Make the table; `migrate` writes its row."""
    op.execute("CREATE TABLE schema_readers (oldest text NOT NULL)")
