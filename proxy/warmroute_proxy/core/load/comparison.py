"""Compares the prefill rates of a fleet's workers, and their paces: how fast their answers stream.

Placement treats rates within a fifth of their median as equal (`level_rates`): otherwise noise between like machines
would send all new sessions to the machine that seems 1 % faster. A median, unlike a mean, is not moved by a few slow
machines, so slow machines do not change how the others are judged.

A worker is slow if its *upper* bound of speed (`pace`) is below `1 / CLEARLY` of a median: that of the *lower* bounds
of the other workers with its role and models. Of two middle values, the lower one is taken as the median. With bounds
instead of estimates, workers that are alike but unequally busy are never told apart. At most half of a group can be
slow, because a worker of the faster half is not below the median of the others. The extra time per token is added to
the cost of a token at a slow worker (`WorkerLoad.slowdown_s`). So a session stays at a slow worker if computing its
prompt elsewhere would cost more time than its slow tokens do.

Paces are compared when a stream ends, at most once in `COMPARE_EVERY_S`, and not at each decision. So processes that
hear of the same streams (`replicas.replica`) arrive at equal penalties.
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
    """Set one rate for all workers whose learned rates differ by no more than noise."""
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
    """Set for each worker how much sooner its cache fills than a cache of mean size, from the reported KV pools."""
    pools = [load.capacity.pool_tokens for load in loads if load.capacity.pool_tokens]
    mean = sum(pools) / len(pools) if pools else 0
    for load in loads:
        pool = load.capacity.pool_tokens
        load.fills_sooner = mean / pool if pool else 1.0


def restart_among(load: WorkerLoad, fleet: Collection[WorkerLoad]) -> None:
    """Start or restart a worker: its rate becomes the mean of the other workers that are proven, or the prior without
    any."""
    rates = [other.prefill_rate.s_per_token for other in fleet if other is not load and other.proven]
    load.restart(sum(rates) / len(rates) if rates else PREFILL_S_PER_TOKEN_PRIOR)


def level_paces(groups: Iterable[Collection[WorkerLoad]], now_s: float) -> None:
    """Set for each worker how much slower its tokens come than those of the other workers in its group."""
    for group in groups:
        speeds = sorted([load.pace.at_least for load in group if load.pace.is_known(now_s)])
        for load in group:
            slower_s = _slower_s(load.pace, speeds) if load.pace.is_known(now_s) else 0.0
            if slower_s != load.slower_s:
                load.set_slower(slower_s)


def forget_paces(loads: Iterable[WorkerLoad], now_s: float) -> float:
    """End the penalty of slow workers that have streamed nothing for a while. Returns when the next penalty ends."""
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
    """Seconds by which a token certainly takes longer than at the other workers; 0 if this worker is not clearly
    slower.

    `speeds`: the lower bounds of all workers of the group, including this one, in ascending order.
    """
    others = len(speeds) - 1
    if not others:
        return 0.0
    middle = (others - 1) // 2
    if speeds[middle] >= pace.at_least:  # without this worker, the later ones move one position forward
        middle += 1
    others_s, own_s = 1.0 / speeds[middle], 1.0 / pace.at_most
    return own_s - others_s if own_s > CLEARLY * others_s else 0.0
