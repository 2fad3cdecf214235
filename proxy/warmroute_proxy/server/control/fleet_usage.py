"""What tenants used, over all regions of the fleet: reads this region's ledger and asks other regions at the same time.

If another region does not answer, the result names that region, and the sums do not include it.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from warmroute.contract.receipt import LOSS_CLASSES
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.ledger.all_rows import MAX_S, Closed
from warmroute_proxy.server.ledger.ladder_sums import Climbed, LadderBy
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.ledger.queries import Busy
from warmroute_proxy.server.ledger.schema import TOTALS
from warmroute_proxy.server.ledger.usage_sums import MAX_GROUPS, WARM, By, Group, Listed, Sums, Turns
from warmroute_proxy.server.regions.peers import PeerQuestions

PEER_TIMEOUT_S: Final = MAX_S + 3.0

T = TypeVar("T", Sums, Listed)
Answer = TypeVar("Answer")


class Elsewhere(NamedTuple):
    """A question to the regions that may serve `tenant`, or to all regions if it is about all tenants (`of_all`)."""

    tenant: TenantConfig
    target: str
    session: str | None
    of_all: bool = False


class FleetUsage:
    def __init__(self, ledger: Ledger, questions: PeerQuestions, region: str, *, alone: bool = True) -> None:
        """`alone`: whether this proxy is the only one of its region. If not, sums lack the turns of other proxies."""
        self._alone = alone
        self._ledger = ledger
        self._questions = questions
        self._region = region

    async def here(self, turns: Turns, by: By | None, *, operator: bool = False) -> Sums:
        """The sums of this region. The sums of all turns of a tenant are kept ready, but do not say why tokens were not
        cached. `operator`: an operator asks. Raises: Refusal.
        """
        sums = await self._added_up(turns, by, operator=operator)
        return sums if self._alone else replace(sums, complete=False)

    async def _added_up(self, turns: Turns, by: By | None, *, operator: bool) -> Sums:
        tenant = turns.tenant
        if tenant is None or by is not None or turns != Turns(tenant):
            return await answered(self._ledger.queries.add_up(turns, by, operator=operator))
        asker = None if operator else tenant
        totals = await answered(self._ledger.queries.ask(asker, lambda: self._ledger.totals(tenant)))
        return Sums({name: totals[name] for name in TOTALS})

    async def listed_here(self, turns: Turns, limit: int, *, operator: bool = False) -> Listed:
        """The newest turns of this region. Raises: Refusal."""
        listed = await answered(self._ledger.queries.newest(turns, limit, operator=operator))
        return listed if self._alone else replace(listed, complete=False)

    async def ladder_here(self, turns: Turns, by: LadderBy | None, *, operator: bool = False) -> Climbed:
        """The ladder of this region's newest turns: the tokens lost at each step from the prompt to the tokens billed
        as cached. Raises: Refusal.
        """
        return await answered(self._ledger.queries.climb(turns, by, operator=operator))

    async def everywhere(self, own: Awaitable[T], kind: type[T], asked: Elsewhere) -> tuple[dict[str, str], list[T]]:
        """Region -> whether it was counted, and the answers of the regions. `own`: the answer of this region."""
        tenant, target, session, of_all = asked
        others = self._questions.ask_all(tenant, target, session, PEER_TIMEOUT_S, of_all=of_all)
        mine, theirs = await asyncio.gather(own, others)
        regions, answers = {self._region: "counted"}, [mine]
        for region, body in theirs.items():
            try:
                answers.append(msgspec.json.decode(body or b"", type=kind))
                regions[region] = "counted"
            except msgspec.MsgspecError:
                regions[region] = "no answer"
        return regions, answers

    async def receipt(self, tenant: str, receipt_id: str) -> dict[str, Any] | None:  # noqa: ARG002
        """A receipt of another proxy, from the database. Always None in this class, which has no database; the caller
        then asks the other proxies.
        """
        return None

    async def sent_entry(self, tenant: str, receipt_id: str) -> tuple[Entry, bool] | None:  # noqa: ARG002
        """A ledger row in the database, and whether it is voided. Always None in this class, which has no database."""
        return None

    async def all_sent(self) -> bool:
        """Whether the database has all rows of this region. Always False in this class, which has no database."""
        return False


async def answered(question: Awaitable[Answer]) -> Answer:
    """The answer of this proxy's ledger. Raises: Refusal."""
    try:
        return await question
    except Busy as busy:
        if busy.own:
            text = "too many of your questions about usage wait for an answer"
            raise Refusal(429, text, code="rate_limit_exceeded", retry_after_s=1) from None
        raise Refusal(503, "too many usage queries at once", code="overloaded", retry_after_s=5) from None
    except Closed:
        raise Refusal(503, "the proxy shuts down", code="draining", retry_after_s=1) from None
    except sqlite3.Error:
        text = "the ledger cannot be read"
        raise Refusal(503, text, code="ledger_unavailable", retry_after_s=1) from None


def usage_body(regions: dict[str, str], answers: list[Sums], by: By | None, since_s: float | None) -> dict[str, Any]:
    counted = [sums.counted_since for sums in answers if sums.counted_since is not None]
    body = {
        "object": "warmroute.usage",
        "by": by,
        "since": since_s,
        "regions": regions,
        "complete": all(sums.complete for sums in answers) and set(regions.values()) == {"counted"},
        "counted_since": max(counted, default=None),
        **_sums(sums.all for sums in answers),
    }
    if by is not None:
        groups: dict[str, list[Group]] = {}
        for group in (group for sums in answers for group in sums.groups):
            groups.setdefault(group.key, []).append(group)
        merged = [
            {"key": key, **_about(found), **_sums(group.sums for group in found)} for key, found in groups.items()
        ]
        merged.sort(key=_order(by))
        body["groups"] = merged[:MAX_GROUPS]
        body["groups_left_out"] = sum(sums.groups_left_out for sums in answers) + len(merged[MAX_GROUPS:])
    return body


def listed_body(regions: dict[str, str], answers: list[Listed], limit: int) -> dict[str, Any]:
    rows = sorted((row for listed in answers for row in listed.rows), key=lambda row: -float(row["settled_at"]))
    return {
        "object": "list",
        "regions": regions,
        "complete": all(listed.complete for listed in answers) and set(regions.values()) == {"counted"},
        "data": rows[:limit],
    }


def _about(groups: list[Group]) -> dict[str, Any]:
    """Facts about the session of the groups, from the region that knows the session's earliest turn."""
    known = [group.about for group in groups if group.about is not None]
    return msgspec.structs.asdict(min(known, key=lambda about: about.began_at)) if known else {}


def _order(by: By) -> Callable[[dict[str, Any]], Any]:
    """The sort key of groups: days and hours by time, all other groups by price, the most expensive first."""
    if by in {"day", "hour"}:
        return lambda group: group["key"]
    return lambda group: (-group["price_nanousd"], group["key"])


def _sums(added: Iterable[dict[str, int]]) -> dict[str, Any]:
    all_sums = list(added)
    total: dict[str, Any] = {name: sum(sums[name] for sums in all_sums) for name in TOTALS}
    warm_prompt, warm_cached = (sum(sums.get(name, 0) for sums in all_sums) for name in WARM)
    prompt = total["prompt_tokens"] - warm_prompt
    total["hit_ratio"] = round((total["cached_tokens"] - warm_cached) / prompt, 6) if prompt > 0 else None
    total["saved_nanousd"] = total["list_nanousd"] - total["price_nanousd"]
    total["losses"] = None
    if all(LOSS_CLASSES[0] in sums for sums in all_sums):
        # the answer of a proxy of an older version may lack some classes
        losses = {name: sum(sums.get(name, 0) for sums in all_sums) for name in LOSS_CLASSES}
        total["losses"] = {name: tokens for name, tokens in losses.items() if tokens}
    return total
