"""Compares the workers of a fleet with each other: their prefill rates, and the paces of their streams.

Placement takes rates within a fifth of their median for equal (`level_rates`): noise between like machines must not
send all new sessions to the one that seems 1 % faster. It is the median, so that some slow machines do not make the
others seem slower than they are.

A worker is slow if what it does *at most* (`pace`) is less than `1 / CLEARLY` of what the others of its role and models
do *at least*, by their median (the lower one of two). Workers that are alike but unequally busy are therefore never
distinguished, and at most half of a group is slow: no worker in the faster half has a faster median above it. The
difference is added to what a token costs there (`WorkerLoad.slowdown_s`), so that a session stays where computing its
prompt again would take longer than slow tokens do.

Paces are compared when a stream ends, once in `COMPARE_EVERY_S`, and not at each decision: processes that share the
same streams (`replicas.replica`) therefore arrive at the same penalties.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.load.pace import Pace
from warmroute_proxy.core.load.prefill_rate import PREFILL_S_PER_TOKEN_PRIOR

RATE_NOISE: Final = 0.2
CLEARLY: Final = 2.0
COMPARE_EVERY_S: Final = 1.0


def level_rates(loads: Collection[WorkerLoad]) -> None:
    """Let placement use one rate where learned rates differ by no more than noise."""
    if not loads:
        return
    learned = [load.prefill_rate.s_per_token for load in loads]
    median = sorted(learned)[(len(learned) - 1) // 2]
    noise = RATE_NOISE * median
    alike = [s_per_token for s_per_token in learned if abs(s_per_token - median) <= noise]
    mean = sum(alike) / len(alike)
    for load, s_per_token in zip(loads, learned, strict=True):
        load.set_rate(s_per_token if abs(s_per_token - median) > noise else mean)


def level_sizes(loads: Collection[WorkerLoad]) -> None:
    """Set for each worker how much sooner than the mean its cache is full, by the KV pools that engines report."""
    pools = [load.capacity.pool_tokens for load in loads if load.capacity.pool_tokens]
    mean = sum(pools) / len(pools) if pools else 0
    for load in loads:
        pool = load.capacity.pool_tokens
        load.fills_sooner = mean / pool if pool else 1.0


def restart_among(load: WorkerLoad, fleet: Collection[WorkerLoad]) -> None:
    """A worker starts, or restarts: its rate is the mean of what the others have shown, else the prior."""
    rates = [other.prefill_rate.s_per_token for other in fleet if other is not load and other.proven]
    load.restart(sum(rates) / len(rates) if rates else PREFILL_S_PER_TOKEN_PRIOR)


def level_paces(groups: Iterable[Collection[WorkerLoad]], now_s: float) -> None:
    """Set for each worker how much slower it is than the others of its group."""
    for group in groups:
        speeds = sorted([load.pace.at_least for load in group if load.pace.is_known(now_s)])
        for load in group:
            slower_s = _slower_s(load.pace, speeds) if load.pace.is_known(now_s) else 0.0
            if slower_s != load.slower_s:
                load.set_slower(slower_s)


def forget_paces(loads: Iterable[WorkerLoad], now_s: float) -> float:
    """Try workers again that were slow and have streamed nothing since. Returns when the next is due."""
    due_s = math.inf
    for load in loads:
        if not load.slower_s:
            continue
        if now_s >= load.pace.forgotten_s():
            load.set_slower(0.0)
        else:
            due_s = min(due_s, load.pace.forgotten_s())
    return due_s


def _slower_s(pace: Pace, speeds: Sequence[float]) -> float:
    """Seconds by which a token surely takes longer than that of the others; 0 unless clearly.

    `speeds` are what all workers of the group, this one included, do at least, in order.
    """
    others = len(speeds) - 1
    if not others:
        return 0.0
    middle = (others - 1) // 2
    if speeds[middle] >= pace.at_least:  # without this worker, those behind it move one position forward
        middle += 1
    others_s, own_s = 1.0 / speeds[middle], 1.0 / pace.at_most
    return own_s - others_s if own_s > CLEARLY * others_s else 0.0
