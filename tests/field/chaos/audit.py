"""What must hold after a run, checked on its findings alone: a list of what does not."""

import json
from collections import defaultdict
from typing import Any, Final

from warmroute.contract import receipt as contract

from .client import Seen
from .run import FD_SPARE, Findings

MAX_GROWTH_KIB: Final = 8 * 1024
SHOWN_BYTES: Final = 600

_SUMMED: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "list_nanousd", "price_nanousd")

Row = dict[str, Any]


def audit(found: Findings) -> list[str]:
    """Everything that is wrong with a run; empty: nothing."""
    rows = {row["id"]: row for row in found.rows}
    problems = [unfinished(seen) for seen in found.seen if seen.end == "unfinished"]
    problems += [f"engine {name} still had {count} requests" for name, count in found.still_working.items() if count]
    problems += answers_against_rows(found.seen, rows)
    problems += (
        keys_charged_twice(found.seen, rows) if found.processes == 1 else []
    )  # each process remembers keys of its own
    problems += rows_against_clients(found, rows)
    problems += rows_against_engines(found, rows)
    problems += interrupted_rows(found, rows)
    problems += usage_against_rows(found)
    problems += _growth(found)
    problems += [f"the proxy complains: {line}" for line in found.complaints]
    return problems


def unfinished(seen: Seen) -> str:
    return f"request {seen.ask.number} ({seen.status}, {seen.receipt}): {seen.detail}: ...{seen.raw[-SHOWN_BYTES:]!r}"


def answers_against_rows(seens: list[Seen], rows: dict[str, Row]) -> list[str]:
    """Each client against the row of its receipt."""
    problems = []
    askers: dict[str, set[str]] = defaultdict(set)
    for seen in seens:
        askers[seen.receipt].add(seen.ask.key or f"request {seen.ask.number}")
    problems += [f"the receipt {r} went to {a}" for r, a in askers.items() if r and len(a) > 1]
    for seen in seens:
        if not seen.receipt:
            if seen.end == "whole":
                problems.append(f"request {seen.ask.number} has an answer and no receipt")
            continue
        row = rows.get(seen.receipt)
        if row is None:
            problems.append(f"request {seen.ask.number} ({seen.end}) has no row {seen.receipt}")
        elif wrong := _against_row(seen, row):
            problems.append(f"request {seen.ask.number} ({seen.end}), row {seen.receipt}: {wrong}")
    return problems


def _against_row(seen: Seen, row: Row) -> str:
    """What a row says that its client did not see."""
    if seen.end == "whole":
        if row["outcome"] != "completed":
            return f"is {row['outcome']}"
        if json.loads(row["usage"]) != seen.usage:
            return f"has the usage {row['usage']}, the client saw {json.dumps(seen.usage)}"
        return "; ".join(contract.check(seen.usage or {}))
    if seen.end == "error":
        if row["outcome"] not in {"engine_error", "refused", "cut_off"}:
            return f"is {row['outcome']}"
        if row["status"] != seen.status:
            return f"has status {row['status']}, the client saw {seen.status}"
        return f"is charged {row['price_nanousd']}" if row["price_nanousd"] else ""
    if seen.end == "left" and row["outcome"] not in {
        "client_left",
        "completed",
        "engine_error",
        "cut_off",
        "interrupted",
    }:
        return f"is {row['outcome']}"
    return ""


def keys_charged_twice(seens: list[Seen], rows: dict[str, Row]) -> list[str]:
    """A key is charged at most once in a life of the proxy."""
    receipts: dict[tuple[str, int], set[str]] = defaultdict(set)
    for seen in seens:
        if seen.ask.key and rows.get(seen.receipt, {}).get("price_nanousd"):
            receipts[seen.ask.key, seen.life].add(seen.receipt)
    return [f"the key {key} is charged {len(ids)} times: {ids}" for (key, _), ids in receipts.items() if len(ids) > 1]


def rows_against_clients(found: Findings, rows: dict[str, Row]) -> list[str]:
    """No row without a client: those that no client can name are not more than the clients that saw no head."""
    problems = []
    named = {seen.receipt for seen in found.seen}
    headless = sum(not seen.receipt for seen in found.seen)
    unnamed = [row for row in found.rows if row["id"] not in named]
    if len(unnamed) > headless:
        problems.append(f"{len(unnamed)} rows that no client saw, but only {headless} clients saw no receipt")
    wrong = [row["id"] for row in unnamed if row["outcome"] == "completed" and row["price_nanousd"] and not headless]
    problems += [f"row {id_} is charged, and nobody got it" for id_ in wrong]
    free = {"engine_error", "refused", "cut_off", "interrupted"}
    problems += [
        f"{r['outcome']} row {r['id']} is charged" for r in found.rows if r["outcome"] in free and r["price_nanousd"]
    ]
    return problems


def rows_against_engines(found: Findings, rows: dict[str, Row]) -> list[str]:
    """Each row against what the engines logged of its rids, and each logged rid against the rows."""
    problems = []
    logged: dict[str, dict[str, Row]] = defaultdict(dict)
    for engine, entries in found.served.items():
        for entry in entries:
            before = logged[entry["rid"]].get(engine)
            if before is not None and not before.get("aborted"):  # sent again over a new connection (`upstream`)
                problems.append(f"engine {engine} served {entry['rid']} twice")
            logged[entry["rid"]][engine] = entry
    known = {rid for row in found.rows for rid in json.loads(row["rids"])}
    problems += [f"engine {e} served {rid}, which no row has" for rid in logged.keys() - known for e in logged[rid]]
    for row in found.rows:
        answering = json.loads(row["workers"])[-1]["id"]
        served = logged[json.loads(row["rids"])[-1]].get(answering)
        wrong = _against_log(row, served)
        if wrong:
            problems.append(f"{row['outcome']} row {row['id']} on {answering}: {wrong}: {served} {row['usage']}")
    return problems


def _against_log(row: Row, entry: Row | None) -> str:
    """What the engine that answered logged otherwise."""
    if row["outcome"] not in {"completed", "client_left"}:
        return ""
    if entry is None:
        return "" if row["outcome"] == "client_left" else "the engine has no such request"
    if row["outcome"] == "completed" and entry["aborted"]:
        return "the engine aborted it"
    receipt = json.loads(row["usage"])["warmroute"]
    if "continued" in receipt:  # what was said before is a part of this engine's prompt
        computed = entry["prompt_tokens"] + entry["completion_tokens"]
        charged = row["prompt_tokens"] + row["completion_tokens"]
        whole = row["outcome"] == "completed" and "cached_tokens" not in receipt["estimated"]
        return (
            ""
            if charged == computed or (charged < computed and not whole)
            else f"{charged} tokens in all, the engine computed {computed}"
        )
    estimated = receipt["estimated"]
    for name in ("prompt_tokens", "completion_tokens"):
        expected = (
            name == "prompt_tokens" and name in estimated
        )  # by placement: a client that left before the count came
        if row[name] > entry[name] and row["price_nanousd"] and not expected:
            return f"more {name} than the engine computed"
        if name not in estimated and row[name] != entry[name]:
            return f"not the {name} that the engine logged"
    return ""


def interrupted_rows(found: Findings, rows: dict[str, Row]) -> list[str]:
    """One interrupted row for each entry that was open at a kill, and none besides."""
    was_open = set().union(*found.open_at_kill)
    interrupted = {row["id"] for row in found.rows if row["outcome"] == "interrupted"}
    problems = [
        f"{id_} was open at a kill and is {rows[id_]['outcome'] if id_ in rows else 'gone'}"
        for id_ in was_open - interrupted
    ]
    return problems + [f"{id_} is interrupted, but was not open at a kill" for id_ in interrupted - was_open]


def usage_against_rows(found: Findings) -> list[str]:
    """`/v1/usage` against the sums of the rows."""
    problems = []
    for tenant, total in zip(("first", "second"), found.totals, strict=True):
        rows = [row for row in found.rows if row["tenant"] == tenant]
        sums = {name: sum(row[name] for row in rows) for name in _SUMMED}
        if any(total[name] != sums[name] for name in _SUMMED):
            problems.append(f"/v1/usage of {tenant} is {total}, the rows sum up to {sums}")
    return problems


def _growth(found: Findings) -> list[str]:
    """Descriptors, and memory in the second half of the last life against the first."""
    problems = []
    if found.fd_end > found.fd_base + FD_SPARE * found.processes:
        problems.append(f"{found.fd_end} descriptors, {found.fd_base} at the beginning")
    first, second = growth_kib(found)
    if second > max(first // 2, MAX_GROWTH_KIB):
        problems.append(f"memory grew by {second} KiB in the second half of the last life, {first} KiB in the first")
    return problems


def growth_kib(found: Findings) -> tuple[int, int]:
    """By how much the last life grew in the first and in the second half of its requests."""
    samples = found.rss[-1]
    if len(samples) < 3:
        return 0, 0
    half = (samples[0][0] + samples[-1][0]) / 2
    middle = next(rss for ended, rss in samples if ended >= half)
    return middle - samples[0][1], samples[-1][1] - middle
