"""Three regions in virtual time: one loses workers or all that it had cached, spills over, and has turns again."""

from typing import Final

import pytest

from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.results import Result
from warmroute_lab.replay.setup import Setup, run
from warmroute_lab.replay.simulation import WorkerChange

AGENTS: Final = Agents(sessions=60, starts_within_s=1200.0)
WORKERS: Final = 3
HOME: Final = range(WORKERS)
FROM_S: Final = 300.0
UNTIL_S: Final = 600.0

pytestmark = pytest.mark.full


def played(*changes: WorkerChange, regions: int = 3) -> Result:
    setup = Setup(
        prefills=9 // regions, kv_tokens=600_000, regions=regions, rtt_s=0.03 if regions > 1 else 0.0,
        each_turn=regions > 1, changes=changes,
    )  # fmt: skip
    return run(agents_trace(AGENTS, "agents"), setup, "warmroute+working-set")


def tokens(result: Result, workers: range, from_s: float, until_s: float) -> float:
    """The mean of the outstanding tokens of workers, over a time."""
    spans = zip(result.load_times_s, result.load_tokens, strict=True)
    sums = [sum(loads[worker] for worker in workers) for at_s, loads in spans if from_s <= at_s < until_s]
    return sum(sums) / len(sums)


@pytest.fixture(scope="module")
def undisturbed() -> Result:
    return played()


def test_three_regions_hit_as_one_does(undisturbed: Result) -> None:
    assert undisturbed.hit > played(regions=1).hit - 0.01


def test_a_region_with_too_few_workers_spills_over_and_has_its_share_again(undisturbed: Result) -> None:
    lost = (1, 2)
    gone = [WorkerChange(FROM_S, "remove", worker) for worker in lost]
    result = played(*gone, *(WorkerChange(UNTIL_S, "add", worker) for worker in lost))
    away, others = range(1, WORKERS), range(WORKERS, 9)
    assert tokens(result, away, FROM_S + 10, UNTIL_S) == 0
    assert tokens(result, others, FROM_S + 10, UNTIL_S) > tokens(undisturbed, others, FROM_S + 10, UNTIL_S)
    ends_s = result.load_times_s[-1]
    assert tokens(result, away, UNTIL_S + 10, ends_s + 1) > 0
    assert result.hit > undisturbed.hit - 0.02, "conversations move once, not to and fro"


def test_a_region_that_comes_back_cold_has_turns_again(undisturbed: Result) -> None:
    result = played(*(WorkerChange(FROM_S, "restart", worker) for worker in HOME))
    ends_s = result.load_times_s[-1]
    assert tokens(result, HOME, FROM_S, ends_s + 1) > 0.5 * tokens(undisturbed, HOME, FROM_S, ends_s + 1)
    assert undisturbed.hit - 0.02 < result.hit < undisturbed.hit
