"""Price books of models, which are added and never changed.

price_book   rates in picodollars per token; the rate of a cache tier or of cache writes is NULL if the book has no
             separate price for it; `version` is the version that the kind `price` got when the book was added
"""

from alembic import op

revision = "0004"
down_revision = "0003"
oldest_reader = "0004"

_STEPS = (
    "INSERT INTO directory_version VALUES ('price', 0)",
    """CREATE TABLE price_book (
        model text NOT NULL, name text NOT NULL, effective_from timestamptz NOT NULL, source text NOT NULL,
        input bigint NOT NULL, cached bigint NOT NULL, output bigint NOT NULL,
        cached_host bigint, cached_storage bigint, cache_write_5m bigint, cache_write_1h bigint,
        version bigint NOT NULL, added_at timestamptz NOT NULL DEFAULT now(), added_by text NOT NULL,
        PRIMARY KEY (model, name), UNIQUE (model, effective_from)
    )""",
    """CREATE FUNCTION price_book_stays() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'a price book is never changed: add another one with a later date'; END
    $$""",
    """CREATE TRIGGER price_book_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON price_book
        FOR EACH STATEMENT EXECUTE FUNCTION price_book_stays()""",
)


def upgrade() -> None:
    """Make the table, and a trigger that rejects changes to its rows."""
    for step in _STEPS:
        op.execute(step)
