"""Reads the newest turn of each lineage (conversation branch) from the ledger, once when a process starts.

The prefix index and the last turns of lineages are only in memory, and end with the process. If a session goes on after
a restart, its uncached tokens must not be explained as `cold`, since the session was served before. The ledger shows
that.

Limit: `MAX_ROWS` of the newest `MAX_LOOKED_AT` completed turns are read: first the newest turn of every tenant, then
the second newest of every tenant, and so on.
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
    """A turn that was served before this process began. `workers`: ids of workers."""

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
