"""The newest turn of each lineage in the ledger, read once when a process starts.

The index and the last turns of lineages are in memory, and end with the process. A session that goes on after a restart
of the proxy was seen before, so the tokens that it lost are not `cold`.

Limit: of the newest `MAX_LOOKED_AT` completed turns, `MAX_ROWS` are read. Tenants take turns, each with its newest row
first.
"""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from warmroute_proxy.server.ledger.schema import connect

MAX_ROWS: Final = 20_000
MAX_LOOKED_AT: Final = 200_000

_NEWEST: Final = (
    "SELECT lineage, turn, prompt_tokens, completion_tokens, region, workers FROM ("
    "SELECT *, row_number() OVER (PARTITION BY tenant ORDER BY number DESC) AS place FROM ("
    "SELECT number, tenant, lineage, turn, prompt_tokens, completion_tokens, region, workers FROM turn"
    " WHERE outcome = 'completed' ORDER BY number DESC LIMIT ?)"
    ") ORDER BY place, number DESC LIMIT ?"
)


class EarlierTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn that was served before this process began. `workers` are ids."""

    turn: int
    prompt_tokens: int
    completion_tokens: int
    region: str
    workers: tuple[str, ...]


class _Worker(msgspec.Struct):
    id: str


_workers: Final = msgspec.json.Decoder(list[_Worker]).decode


def read_earlier_turns(database: Path) -> dict[str, EarlierTurn]:
    """Return the newest completed turn of each lineage. Raises: sqlite3.Error, msgspec.MsgspecError."""
    found: dict[str, EarlierTurn] = {}
    with contextlib.closing(connect(database, read_only=True)) as connection:
        rows = connection.execute(_NEWEST, (MAX_LOOKED_AT, MAX_ROWS))
        for lineage, turn, prompt, completion, region, workers in rows:
            if lineage not in found:
                ids = tuple([worker.id for worker in _workers(workers)])
                found[lineage] = EarlierTurn(turn, prompt, completion, region, ids)
    return found
