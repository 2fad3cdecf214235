"""The ledger of a fleet: rows by day, sums by hour, how far each proxy has sent, and leases on budgets.

    spool          the last ledger row that each proxy has sent, and when the proxy was last seen
    turn           the record of each ended entry, as in the proxy's ledger file; one partition per day
    usage_hour     sums of the turns of an hour, which is given as the unix seconds of its start
    usage_session  the sums of `usage_hour` by session; one partition per day
    budget         the leased amount of a budget in a period, in billionths of a USD
    budget_lease   the part of the leased amount that each start of a proxy holds
    api_key        API keys of tenants, by their digest
    key_version    a number that rises with each change of keys
    audit          who has changed what

The primary keys of the sums contain the proxy, so no proxy waits for another proxy's transaction.
"""

from alembic import op

revision = "0001"
down_revision = None
oldest_reader = "0001"

_SUMS = """
    turns bigint NOT NULL, prompt_tokens bigint NOT NULL, cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL, list_nanousd bigint NOT NULL, price_nanousd bigint NOT NULL,
    "new" bigint NOT NULL, cold bigint NOT NULL, prefix_changed bigint NOT NULL, moved bigint NOT NULL,
    elsewhere bigint NOT NULL, evicted bigint NOT NULL, salt_changed bigint NOT NULL, page_rounding bigint NOT NULL,
    not_kept bigint NOT NULL, engine_misreport bigint NOT NULL, unknown bigint NOT NULL
"""
_TABLES = (
    """CREATE TABLE spool (
        proxy text PRIMARY KEY, region text NOT NULL, "position" bigint NOT NULL DEFAULT 0,
        last_id text NOT NULL DEFAULT '',
        unsent bigint NOT NULL DEFAULT 0, closed boolean NOT NULL DEFAULT false,
        seen_at timestamptz NOT NULL DEFAULT now()
    )""",
    """CREATE TABLE turn (
        day date NOT NULL, id text NOT NULL, tenant text NOT NULL, session text NOT NULL, model text NOT NULL,
        region text NOT NULL, proxy text NOT NULL, settled_at double precision NOT NULL, record text NOT NULL,
        PRIMARY KEY (day, id)
    ) PARTITION BY RANGE (day)""",
    "CREATE INDEX turn_of_tenant ON turn (tenant, day, settled_at)",
    f"""CREATE TABLE usage_hour (
        tenant text NOT NULL, hour bigint NOT NULL, model text NOT NULL, proxy text NOT NULL, {_SUMS},
        PRIMARY KEY (tenant, hour, model, proxy)
    )""",
    f"""CREATE TABLE usage_session (
        day date NOT NULL, tenant text NOT NULL, session text NOT NULL, hour bigint NOT NULL, model text NOT NULL,
        proxy text NOT NULL, {_SUMS},
        PRIMARY KEY (day, tenant, session, hour, model, proxy)
    ) PARTITION BY RANGE (day)""",
    """CREATE TABLE budget (
        name text NOT NULL, period text NOT NULL, starts bigint NOT NULL, leased_nanousd bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (name, period, starts)
    )""",
    """CREATE TABLE budget_lease (
        proxy text NOT NULL, boot text NOT NULL, name text NOT NULL, period text NOT NULL, starts bigint NOT NULL,
        nanousd bigint NOT NULL,
        PRIMARY KEY (proxy, boot, name, period, starts)
    )""",
    """CREATE TABLE api_key (
        id text PRIMARY KEY, sha256 text NOT NULL UNIQUE, tenant text NOT NULL, note text NOT NULL,
        made_at timestamptz NOT NULL DEFAULT now(), expires_at timestamptz, revoked_at timestamptz
    )""",
    "CREATE TABLE key_version (version bigint NOT NULL)",
    "INSERT INTO key_version VALUES (0)",
    """CREATE TABLE audit (
        at timestamptz NOT NULL DEFAULT clock_timestamp(), who text NOT NULL, action text NOT NULL,
        subject text NOT NULL, tenant text NOT NULL
    )""",
)


def upgrade() -> None:
    for table in _TABLES:
        op.execute(table)
