"""Reads the admin listeners of all regions once: engines, queue, counters, and the losses of turns."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from warmroute_cli.api import Api, ApiError
from warmroute_cli.names import session_names
from warmroute_cli.top.rates import Counters, Row, counters_of, rows_of

TIMEOUT_S: Final = 5.0
NEWEST: Final = "50"
MAX_LOSSES: Final = 50
EXPECTED: Final = frozenset({"new", "cold", "page_rounding", "not_kept"})
"""Loss classes that occur even if nothing goes wrong, so they are not listed."""

_BUSY: Final = frozenset({0, 429, 503})
"""Status codes of a proxy that cannot read its ledger in time; 0: no answer."""


class EngineRow(NamedTuple):
    """A worker of an engine. `tiers`: the used share of each KV tier, as the engine reports it."""

    region: str
    id: str
    role: str
    state: str
    running: int
    prefill_tokens: int
    kv_share: float | None
    queue_s: float
    tiers: Mapping[str, float]


class Loss(NamedTuple):
    """Tokens of a turn that were once cached or could have been, but were computed."""

    ended_s: float
    region: str
    name: str
    tokens: int
    receipt: str
    session: str
    """The name of the session; "" for a turn without a session."""


class FleetReading(NamedTuple):
    """The reading of all regions. `problems`: errors of regions that do not answer, whose numbers are missing.
    `without_losses`: regions that answer, but are too busy to list the losses of turns.
    """

    regions: tuple[str, ...]
    engines: tuple[EngineRow, ...] = ()
    queued: int = 0
    oldest_s: float = 0.0
    counters: Counters = Counters()
    losses: tuple[Loss, ...] = ()
    problems: tuple[str, ...] = ()
    without_losses: tuple[str, ...] = ()


def read(admins: Mapping[str, Api]) -> FleetReading:
    engines: list[EngineRow] = []
    rows: list[Row] = []
    losses: list[Loss] = []
    problems: list[str] = []
    without_losses: list[str] = []
    queued, oldest_s = 0, 0.0
    for region, admin in admins.items():
        try:
            metrics = rows_of(admin.text("/metrics", timeout_s=TIMEOUT_S))
            engines += _engines(region, admin, metrics)
            queue = admin.ask("/admin/admission", timeout_s=TIMEOUT_S)["queue"]
            listed = _newest(admin)
        except ApiError as error:
            problems.append(f"{region}: {error}")
            continue
        rows += metrics
        queued, oldest_s = queued + queue["requests"], max(oldest_s, queue["oldest_s"])
        if listed is None:
            without_losses.append(region)
        names = session_names(listed or ())
        losses += [loss for turn in listed or () for loss in _losses(turn, names.get(turn["session"], ""))]
    # Proxies that share a database list each other's turns, so equal losses count once.
    newest = sorted(set(losses), key=lambda loss: (-loss.ended_s, -loss.tokens))[:MAX_LOSSES]
    return FleetReading(
        tuple(admins),
        tuple(engines),
        queued,
        oldest_s,
        counters_of(rows),
        tuple(newest),
        tuple(problems),
        tuple(without_losses),
    )


def _newest(admin: Api) -> list[dict[str, Any]] | None:
    """The newest turns. Empty if the proxy is too old for this request, None if it is too busy."""
    try:
        return list(admin.ask("/admin/view/receipts", {"limit": NEWEST}, timeout_s=TIMEOUT_S)["data"])
    except ApiError as error:
        if error.status in _BUSY:
            return None
        if error.status != 404:
            raise
        return []


def _engines(region: str, admin: Api, metrics: list[Row]) -> Iterator[EngineRow]:
    states = {row["id"]: row["state"] for row in admin.ask("/admin/engines", timeout_s=TIMEOUT_S)["engines"]}
    tiers: dict[str, dict[str, float]] = {}
    for name, labels, value in metrics:
        if name == "warmroute_worker_kv_usage_ratio":
            tiers.setdefault(labels["worker"], {})[labels["tier"]] = value
    for worker_id, worker in admin.ask("/admin/workers", timeout_s=TIMEOUT_S)["workers"].items():
        yield _row(region, worker_id, worker, states.get(worker["engine"], "?"), tiers.get(worker_id, {}))


def _row(region: str, worker_id: str, worker: Mapping[str, Any], state: str, tiers: Mapping[str, float]) -> EngineRow:
    limit, used = worker.get("token_limit"), worker["resident_tokens"]
    return EngineRow(
        region=region,
        id=worker_id,
        role=worker["role"],
        state=state,
        running=worker["running"],
        prefill_tokens=worker["prefill_tokens"],
        kv_share=used / limit if limit else None,
        queue_s=worker["queue_s"],
        tiers=tiers,
    )


def _losses(turn: Mapping[str, Any], session: str) -> Iterator[Loss]:
    for name, tokens in turn["loss"].items():
        if name not in EXPECTED:
            yield Loss(turn["settled_at"], turn["region"], name, tokens, turn["id"], session)
