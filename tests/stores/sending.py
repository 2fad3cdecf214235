"""Ledger files with made-up rows, and the thread that sends them."""

from pathlib import Path

import msgspec

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.queue.budget import Budget
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE
from warmroute_proxy.server.ledger.schema import connect, prepare
from warmroute_proxy.server.stores.postgres_store import Connections, PostgresStore, Sender
from warmroute_proxy.server.stores.shipping import Shipping
from warmroute_proxy.server.stores.spool import Spool
from warmroute_proxy.server.stores.store_thread import StoreThread

BEGAN_S = 1_790_000_000.0
USAGE = msgspec.Raw(b'{"prompt_tokens":100,"note":"a \\u0000 b","warmroute":{"loss":{"cold":36}}}')


def row(number: int, settled_at: float = BEGAN_S, tenant: str = "acme", key_id: str = "") -> Entry:
    named = b'"warmroute":{' + (b'"key":"%b",' % key_id.encode() if key_id else b"")
    usage = msgspec.Raw(bytes(USAGE).replace(b'"warmroute":{', named))
    rates, workers = Rates(1, 1, 1), msgspec.Raw(b"[]")
    return Entry(
        f"wr-{int(settled_at):08x}{number:016x}", tenant, f"{number // 10:016x}", "00000000000000aa", 1, "east", "m",
        "chat", True, rates, settled_at, None, "settled", 100, 64, 10, 500, 300, "completed", 200, ["r"], workers, 64,
        settled_at, 1.0, 2.0, usage,
    )  # fmt: skip


def fill(folder: Path, entries: list[Entry], start: int = 0) -> Path:
    """Add rows to a ledger file. `start`: the start of the process that served them."""
    file = folder / LEDGER_FILE
    db = connect(file)
    prepare(db, file)
    db.executemany("INSERT INTO turn_record VALUES (?, ?, ?)", [(e.id, e.record().decode(), start) for e in entries])
    db.close()
    return file


def sending(
    dsn: str,
    file: Path,
    proxy: str = "p",
    keep_days: int | None = None,
    *,
    budgets: tuple[Budget, ...] = (),
    closes: bool = True,
) -> StoreThread:
    """A thread that sends the rows of a ledger file."""
    connections = Connections.to(dsn)

    def make() -> Shipping:
        sender = Sender(proxy, "east", closes)
        return Shipping(Spool(file), PostgresStore(connections.rows, sender, keep_days, budgets))

    return StoreThread(connections, make)
