"""What must hold after a run with several proxies and stores that broke: a list of what does not."""

from collections import Counter, defaultdict

from warmroute_proxy.core.queue.budget import LARGEST_PART

from .audit import (
    Row,
    answers_against_rows,
    interrupted_rows,
    keys_charged_twice,
    rows_against_clients,
    rows_against_engines,
    unfinished,
    usage_against_rows,
)
from .replicas import ReplicaFindings


def audit_replicas(found: ReplicaFindings, requests: int) -> list[str]:
    """Everything that is wrong with a run of so many requests; empty: nothing."""
    rows = {row["id"]: row for row in found.rows}
    problems = [unfinished(seen) for seen in found.seen if seen.end == "unfinished"]
    problems += _lost(found, requests)
    problems += answers_against_rows(found.seen, rows)
    problems += keys_charged_twice(found.seen, rows)
    problems += rows_against_clients(found, rows)
    problems += rows_against_engines(found, rows)
    problems += interrupted_rows(found, rows)
    problems += usage_against_rows(found)
    problems += _database_against_files(found)
    problems += _overshoot(found)
    problems += [f"a proxy complains: {line}" for line in found.complaints]
    return problems


def overshoot_nanousd(found: ReplicaFindings) -> int:
    """How far the first tenant has spent beyond its budget; below 0: not all of it."""
    spent: int = sum(row["price_nanousd"] for row in found.rows if row["tenant"] == "first")
    return spent - found.limit_nanousd


def cut_by_kill(found: ReplicaFindings) -> int:
    """Requests whose first answer was charged, and cut off by the kill of its proxy, so that it was asked for again."""
    prices = {row["id"]: row["price_nanousd"] for row in found.rows}
    return sum(seen.end == "killed" and bool(prices.get(seen.receipt)) for seen in found.seen)


def _lost(found: ReplicaFindings, requests: int) -> list[str]:
    """Each request ends with an answer, an error, or the client's leaving."""
    ends: dict[int, set[str]] = defaultdict(set)
    for seen in found.seen:
        ends[seen.ask.number].add(seen.end)
    good = {"whole", "error", "left"}
    return [f"request {number} is lost: {ends[number]}" for number in range(requests) if not ends[number] & good]


def _database_against_files(found: ReplicaFindings) -> list[str]:
    """The database has each row of each ledger file once and as it is there, and its sums are those of the rows."""
    in_files: dict[str, Row] = {row["id"]: row for rows in found.files for row in rows}
    problems = []
    if len(in_files) != sum(map(len, found.files)):
        problems.append("two proxies have a row with the same id")
    counts = Counter(row["id"] for row in found.rows)
    problems += [f"the database has row {id_} {count} times" for id_, count in counts.items() if count > 1]
    problems += [f"row {id_} is not in the database" for id_ in in_files.keys() - counts.keys()]
    problems += [f"row {id_} is in no ledger file" for id_ in counts.keys() - in_files.keys()]
    problems += [
        f"row {row['id']} of the database is not that of its ledger file: {row}, {in_files[row['id']]}"
        for row in found.rows
        if row["id"] in in_files and any(row[name] != in_files[row["id"]][name] for name in ("usage", "price_nanousd"))
    ]
    whole = len(found.rows), sum(row["price_nanousd"] for row in found.rows)
    return problems + [
        f"{table} sums up to {sums}, the rows to {whole}" for table, sums in found.sums.items() if sums != whole
    ]


def _overshoot(found: ReplicaFindings) -> list[str]:
    """At most the largest leases of all proxies."""
    most = found.proxies * (found.limit_nanousd // LARGEST_PART)
    beyond = overshoot_nanousd(found)
    return [f"the budget was overshot by {beyond} nanousd, the leases are {most}"] if beyond > most else []
