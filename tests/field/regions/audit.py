"""What must hold of a run, on its findings alone: a list of what does not. No verdict is by time."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from warmroute.contract import receipt as contract

from .agents import TENANTS
from .run import Asked, Findings

Row = dict[str, Any]

FREE: Final = frozenset({"engine_error", "refused", "cut_off", "interrupted"})
REFUSED_SHARE: Final = 0.05
"""Of the tries where nothing is broken: a slow machine lets a probe of its engines miss its deadline."""

AT_HOME_SHARE: Final = 0.75
"""Where it is not kept, a turn is at home once in three times."""


def audit(found: Findings, *, affinity: bool = True) -> list[str]:
    """Everything that is wrong with a run; empty: nothing. Without `affinity`, turns need not be served at home, and
    the engines may have no room for one.
    """
    rows = [row for rows in found.files.values() for row in rows]
    by_id: dict[str, Row] = {row["id"]: row for row in rows}
    problems = list(found.complaints)
    problems += [f"{name} still had {count} requests" for name, count in found.still_working.items() if count]
    problems += [f"{name} has {count} open entries" for name, count in found.open_at_end.items() if count]
    problems += [f"{name} has {count} rows to have voided" for name, count in found.orders_at_end.items() if count]
    problems += answers(found, refuses=not affinity)
    problems += rows_once(found, rows)
    problems += answers_against_rows(found, by_id)
    problems += paths(found, by_id)
    problems += forwards(found, rows)
    problems += residency(found, rows)
    problems += engines_against_rows(found, rows)
    if affinity:
        problems += homes(found)
    return problems


def answers(found: Findings, *, refuses: bool = False) -> list[str]:
    """No answer breaks off in silence; where nothing is broken, each is whole at the first try, but for a few that are
    refused; `refuses`: for any number."""
    problems: list[str] = []
    refused: list[str] = []
    calm = 0
    for asked in found.tried:
        calm += not asked.during
        seen = asked.seen
        where = f"turn {seen.ask.number} of {asked.turn.tenant} at {asked.proxy}"
        if seen.end == "unfinished":
            problems.append(f"{where}: {seen.status} {seen.detail}: ...{seen.raw[-300:]!r}")
        elif seen.end != "whole" and not asked.during:
            problem = f"{where}: {seen.end} {seen.status} {seen.detail}, though nothing was broken: {seen.raw[-300:]!r}"
            (refused if seen.status in {429, 503} else problems).append(problem)
    if not refuses and len(refused) > REFUSED_SHARE * calm:
        problems += refused
    return problems


def rows_once(found: Findings, rows: list[Row]) -> list[str]:
    """No row is lost or doubled on its way into the database."""
    counts = Counter(row["id"] for row in rows)
    problems = [f"row {id_} is in {count} ledger files" for id_, count in counts.items() if count > 1]
    if found.database is None:
        return problems
    stored = Counter(row["id"] for row in found.database)
    problems += [f"row {id_} is {count} times in the database" for id_, count in stored.items() if count > 1]
    problems += [f"row {id_} is not in the database" for id_ in counts.keys() - stored.keys()]
    problems += [f"row {id_} of the database is in no ledger file" for id_ in stored.keys() - counts.keys()]
    paid = {row["id"]: row["price_nanousd"] for row in found.database}
    problems += [
        f"row {row['id']} costs {row['price_nanousd']} here and {paid[row['id']]} in the database"
        for row in rows
        if row["id"] in paid and paid[row["id"]] != row["price_nanousd"]
    ]
    return problems


def answers_against_rows(found: Findings, by_id: dict[str, Row]) -> list[str]:
    """A client pays for what it got: each whole answer has a row of its own, an answer that was lost costs nothing."""
    problems = []
    receipts: dict[str, set[int]] = defaultdict(set)
    for asked in found.tried:
        seen = asked.seen
        if seen.receipt:
            receipts[seen.receipt].add(seen.ask.number)
        where = f"turn {seen.ask.number} ({seen.end}) at {asked.proxy}, row {seen.receipt}"
        row = by_id.get(seen.receipt)
        if seen.end == "whole":
            if row is None:
                problems.append(f"{where}: there is no row")
            elif row["outcome"] != "completed" or json.loads(row["usage"]) != seen.usage:
                problems.append(f"{where}: is {row['outcome']} with {row['usage']}, the client saw {seen.usage}")
            else:
                problems += [f"{where}: {each}" for each in contract.check(seen.usage or {})]
        elif seen.end == "error" and row is not None and net_price(row, by_id):
            problems.append(f"{where}: is {row['outcome']} and charged {row['price_nanousd']}")
    problems += [f"the receipt {id_} went to the turns {turns}" for id_, turns in receipts.items() if len(turns) > 1]
    problems += [
        f"{r['outcome']} row {r['id']} is charged"
        for r in by_id.values()
        if r["outcome"] in FREE and r["price_nanousd"]
    ]
    paid: dict[int, list[str]] = defaultdict(list)
    for asked in found.tried:
        row = by_id.get(asked.seen.receipt)
        if row is not None and net_price(row, by_id) and asked.seen.end in {"whole", "error"}:
            paid[asked.seen.ask.number].append(row["id"])
    problems += [f"turn {number} is charged by {ids}" for number, ids in paid.items() if len(set(ids)) > 1]
    named = {asked.seen.receipt for asked in found.tried}
    headless = sum(not asked.seen.receipt for asked in found.tried)
    unnamed = [
        id_
        for id_, row in by_id.items()
        if id_ not in named and row["outcome"] == "completed" and net_price(row, by_id)
    ]
    if len(unnamed) > headless:
        problems.append(
            f"{len(unnamed)} charged rows that no client saw, {headless} clients saw no receipt: {unnamed[:3]}"
        )
    return problems


def net_price(row: Row, by_id: dict[str, Row]) -> int:
    """What a row costs, less what its void takes back."""
    void = by_id.get(f"{row['id']}-void")
    return int(row["price_nanousd"]) + (int(void["price_nanousd"]) if void is not None else 0)


def paths(found: Findings, by_id: dict[str, Row]) -> list[str]:
    """A receipt tells where a turn was served, and by which way it came."""
    problems = []
    for asked in found.tried:
        if asked.seen.end != "whole" or asked.seen.usage is None:
            continue
        receipt, row = asked.seen.usage["warmroute"], by_id.get(asked.seen.receipt)
        where = f"turn {asked.seen.ask.number} at {asked.proxy}, receipt {receipt['id']}"
        if found.old in {receipt["region"], asked.region}:
            continue
        if receipt["region"] != asked.seen.home:
            problems.append(f"{where}: served in {receipt['region']}, the head names {asked.seen.home}")
        forwarded = receipt.get("forwarded")
        came_from = forwarded["from"] if forwarded is not None else receipt["region"]
        if came_from != asked.region:
            problems.append(f"{where}: came in at {asked.region}, the receipt says {came_from}")
        if forwarded is not None and not forwarded["rtt_ms"] > 0:
            problems.append(f"{where}: the way took {forwarded['rtt_ms']} ms")
        if row is not None and row["forwarded_from"] != (None if forwarded is None else forwarded["from"]):
            problems.append(f"{where}: the row says {row['forwarded_from']}")
    return problems


def forwards(found: Findings, rows: list[Row]) -> list[str]:
    """Each try is forwarded at most once: no proxy forwards what was forwarded to it. Each forward of a region has a
    row at the home, or failed, or its client has no whole answer.
    """
    forwards = sum(count.get("warmroute_forwards_total", 0.0) for count in found.counts.values())
    problems = []
    if forwards > len(found.tried):
        problems.append(f"{forwards:.0f} forwards of {len(found.tried)} tries")
    came = Counter(row["forwarded_from"] for row in rows if row["forwarded_from"] and not row["id"].endswith("-void"))
    for region, count in came.items():
        names = {name for name in found.counts if name.startswith(f"{region}-")}
        sent = sum(found.counts[name].get("warmroute_forwards_total", 0.0) for name in names)
        late = sum(
            asked.region == region and asked.ended_s > found.counted_at_s.get(asked.seen.life, asked.ended_s)
            for asked in found.tried
        )
        if count > sent + late and not names & found.killed:
            problems.append(f"{count} rows were forwarded from {region}, which has forwarded {sent:.0f}")
    for region in {name.rpartition("-")[0] for name in found.counts}:
        names = {name for name in found.counts if name.startswith(f"{region}-")}
        sent, failed = (
            sum(found.counts[name].get(counter, 0.0) for name in names)
            for counter in ("warmroute_forwards_total", "warmroute_forward_failures_total")
        )
        lost = sum(asked.region == region and asked.seen.end != "whole" for asked in found.tried)
        if sent > came[region] + failed + lost:
            problems.append(
                f"{region} forwarded {sent:.0f}: {came[region]} have rows, {failed:.0f} failed, {lost} were lost"
            )
    return problems


def residency(found: Findings, rows: list[Row]) -> list[str]:
    """A tenant is served where it may be, and its words are nowhere else."""
    leaks = [leak for leak in found.leaks if not found.old or f"from {found.old}" not in leak]
    problems = list(dict.fromkeys(leaks))
    for row in rows:
        allowed = TENANTS[row["tenant"]]
        workers = json.loads(row["workers"])
        problems += [
            f"row {row['id']} of {row['tenant']} was served by {worker['id']}"
            for worker in workers
            if allowed and worker["id"].partition("-")[0] not in allowed
        ]
    return problems


def engines_against_rows(found: Findings, rows: list[Row]) -> list[str]:
    """What engines served has rows, and each row that is charged was served. SGLang keeps no log of that."""
    if not found.has_logs:
        return []
    known = {rid for row in rows for rid in json.loads(row["rids"])}
    served: dict[str, set[str]] = defaultdict(set)
    problems = []
    for engine, entries in found.served.items():
        for entry in entries:
            if engine in served[entry["rid"]]:
                problems.append(f"{engine} served {entry['rid']} twice")
            served[entry["rid"]].add(engine)
    problems += [
        f"{sorted(engines)} served {rid}, which no row has" for rid, engines in served.items() if rid not in known
    ]
    for row in rows:
        if row["outcome"] == "completed" and not served.keys() & set(json.loads(row["rids"])):
            problems.append(f"no engine served row {row['id']}")
    return problems


def homes(found: Findings) -> list[str]:
    """Where nothing is broken, a turn is served where the one before it was, wherever it enters."""
    pairs = list(calm_turns(found))
    at_home = sum(before.seen.home == asked.seen.home for _, before, asked in pairs)
    if at_home < AT_HOME_SHARE * len(pairs):
        return [f"{at_home} of {len(pairs)} turns were served at home"]
    return []


def calm_turns(found: Findings) -> Iterator[tuple[int, Asked, Asked]]:
    """The turns of an agent that follow one another and met no fault, with the number of the second one's try."""
    last: dict[int, Asked] = {}
    for number, asked in enumerate(found.tried):
        if asked.seen.end != "whole" or asked.seen.usage is None:
            continue
        before = last.get(asked.turn.agent)
        last[asked.turn.agent] = asked
        if before is not None and not before.during and not asked.during:
            yield number, before, asked
