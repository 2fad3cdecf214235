"""What tenants used, if all proxies of a fleet send their ledger rows to one database: asks it instead of regions.

Rows that this proxy has not sent yet are read from its own files and added, so that its answers include its last turn.
A region is reported as `late` if a proxy of it was not seen lately, or has rows that wait to be sent.
"""

import re
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import void_id
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.control.fleet_usage import Elsewhere, FleetUsage, T, answered
from warmroute_proxy.server.ledger.ledger import Ledger, receipt_of
from warmroute_proxy.server.ledger.schema import TOTALS
from warmroute_proxy.server.ledger.usage_sums import By, Listed, Sums, Turns
from warmroute_proxy.server.regions.peers import PeerQuestions
from warmroute_proxy.server.stores.fleet_ledger import FleetLedger, full_hour, merged
from warmroute_proxy.server.stores.store_state import StoreError
from warmroute_proxy.server.stores.store_thread import StoreBusy

_DRAWN: Final = re.compile(r"wr-([0-9a-f]{8})")


class SharedUsage(FleetUsage):
    """Asks the database, and this proxy's ledger for rows that the database does not have yet."""

    def __init__(self, ledger: Ledger, questions: PeerQuestions, region: str, shared: FleetLedger) -> None:
        super().__init__(ledger, questions, region)
        self._shared = shared

    async def here(self, turns: Turns, by: By | None, *, operator: bool = False) -> Sums:
        """The sums of all regions. Sums by program or agent are those of this proxy alone, since the database keeps
        neither program nor agent. Raises: Refusal.
        """
        if by in {"harness", "agent"}:
            return replace(await super().here(turns, by, operator=operator), complete=False)
        turns = Turns(turns.tenant, turns.session, full_hour(turns.since_s))
        sent = await from_database(self._shared.add_up(turns, by))
        own = await answered(self._ledger.queries.add_up(turns, by, sent.position, operator=operator))
        sums = merged(sent.sums, own)
        if turns.tenant is not None and by is None and turns == Turns(turns.tenant):
            return Sums({name: sums.all[name] for name in TOTALS}, complete=sums.complete)
        return sums

    async def listed_here(self, turns: Turns, limit: int, *, operator: bool = False) -> Listed:
        """The newest turns of all regions. Raises: Refusal."""
        sent = await from_database(self._shared.newest(turns, limit))
        own = await answered(self._ledger.queries.newest(turns, limit, sent.position, operator=operator))
        rows = sorted([*sent.listed.rows, *own.rows], key=lambda row: -float(row["settled_at"]))
        return Listed(rows[:limit], own.complete)

    async def everywhere(self, own: Awaitable[T], kind: type[T], asked: Elsewhere) -> tuple[dict[str, str], list[T]]:
        """Region -> whether it was counted in full, and the answer of the database, which `own` gets."""
        del kind, asked
        answer = await own
        found = await from_database(self._shared.regions())
        regions = {region: "counted" if all_here else "late" for region, all_here in sorted(found.items())}
        return regions | {self._region: "counted"}, [answer]

    async def receipt(self, tenant: str, receipt_id: str) -> dict[str, Any] | None:
        """A receipt of any proxy; None if the database does not have the receipt, or cannot be reached."""
        try:
            found = await self.sent_entry(tenant, receipt_id)
        except (StoreError, StoreBusy):
            return None
        if found is None:
            return None
        entry, voided = found
        return receipt_of(entry) | ({"voided_by": void_id(receipt_id)} if voided else {})

    async def sent_entry(self, tenant: str, receipt_id: str) -> tuple[Entry, bool] | None:
        """A ledger row of any proxy in the database, and whether it is voided. Raises: StoreError, StoreBusy."""
        drawn = _DRAWN.match(receipt_id)
        return None if drawn is None else await self._shared.entry(tenant, receipt_id, int(drawn[1], 16))

    async def all_sent(self) -> bool:
        """Whether the database has all rows of this region. Raises: StoreError, StoreBusy."""
        return (await self._shared.regions()).get(self._region, False)


async def from_database(question: Awaitable[Any]) -> Any:
    """The answer of the database. Raises: Refusal."""
    try:
        return await question
    except StoreBusy:
        raise Refusal(503, "too many usage queries at once", code="overloaded", retry_after_s=5) from None
    except StoreError:
        text = "the database of the ledger cannot be read now"
        raise Refusal(503, text, code="ledger_unavailable", retry_after_s=5) from None
