"""Which proxies read this schema: those that need `oldest` or a later revision. An older proxy refuses the database.

schema_readers  one row: the oldest revision whose proxies can go on with the schema as it is
"""

from alembic import op

revision = "0005"
down_revision = "0004"
oldest_reader = "0005"


def upgrade() -> None:
    """Make the table; `migrate` writes its row."""
    op.execute("CREATE TABLE schema_readers (oldest text NOT NULL)")
