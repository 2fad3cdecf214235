"""Derives turns from a ledger entry: one for each engine that computed a part of it."""

from collections.abc import Container, Iterator
from typing import Final

import msgspec

from warmroute_proxy.core.accounting.engine_counts import EngineCounts
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import turns_in
from warmroute_proxy.core.accounting.reconciliation import KINDS, SettledTurn
from warmroute_proxy.core.base.role import Role

_WITHOUT_ANSWER: Final = {"prefill"}
_WITHOUT_PROMPT: Final = {"decode"}


class _Worker(msgspec.Struct):
    id: str
    role: Role
    dp_rank: int = 0


_workers: Final = msgspec.json.Decoder(list[_Worker]).decode


def turns_of(entry: Entry, engines: Container[str]) -> Iterator[SettledTurn]:
    """Yield one turn for each engine of an ended entry.

    Entries that are credits or void another entry yield nothing: engines compute nothing for a credit, and a voided
    turn was computed all the same. `engines`: the known ids of engines, to tell which engine a worker belongs to. If a
    worker is one rank of an engine, its id consists of the engine's id and the rank's number.
    """
    if turns_in(entry.id) != 1:
        return
    receipt = entry.receipt()
    exact = receipt.continued is None and not any(kind in receipt.estimated for kind in KINDS)
    for worker in _workers(entry.workers):
        engine = worker.id if worker.id in engines else worker.id.removesuffix(f":{worker.dp_rank}")
        prompt = worker.role not in _WITHOUT_PROMPT
        counts = EngineCounts(
            1,
            entry.prompt_tokens if prompt else 0,
            entry.cached_tokens if prompt else 0,
            0 if worker.role in _WITHOUT_ANSWER else entry.completion_tokens,
        )
        failed = entry.outcome != "completed"
        yield SettledTurn(engine, entry.opened_at, entry.settled_at, counts, exact, len(entry.rids), failed)
