"""The replay reproduces a published table: baselines on Mooncake's traces in the reference queueing model.

Rows: hit ratio and p90 of TTFT in seconds, for workers of 3,000,000 KV tokens. Another simulator made them, so hit
ratios may differ by 0.005 and the tail by a tenth.

The other simulator, as its rows tell, lets a prompt be hit only when all of it is computed. Here each chunk can be when
its step has ended, as in SGLang; where long prompts with a common prefix queue up at one worker, more is hit.
"""

from functools import cache
from pathlib import Path

import pytest

from warmroute_lab.engine.model.pool import KvPool
from warmroute_lab.engine.model.work import Work
from warmroute_lab.replay.loaders import load
from warmroute_lab.replay.setup import Setup, run
from warmroute_lab.replay.trace import Trace

pytestmark = pytest.mark.full

TRACES = Path(__file__).parents[3] / "shared" / "traces"

ROWS = {
    ("conversation", 8, 1): {
        "round_robin": (0.107, 1.64), "session_hash": (0.341, 1.70),
        "smg_event": (0.360, 1.36), "llmd_affinity": (0.353, 1.11),
    },
    ("conversation", 8, 2): {
        "round_robin": (0.106, 2.95), "session_hash": (0.341, 2.68),
        "smg_event": (0.360, 1.79), "llmd_affinity": (0.345, 1.21),
    },
    ("conversation", 8, 4): {
        "round_robin": (0.107, 41.62), "session_hash": (0.339, 7.73),
        "smg_event": (0.358, 3.44), "llmd_affinity": (0.332, 1.72),
    },
    ("conversation", 4, 1): {
        "round_robin": (0.127, 3.02), "session_hash": (0.296, 3.03),
        "smg_event": (0.310, 2.16), "llmd_affinity": (0.296, 1.36),
    },
    ("conversation", 4, 2): {
        "round_robin": (0.129, 42.77), "session_hash": (0.297, 10.21),
        "smg_event": (0.311, 4.56), "llmd_affinity": (0.287, 2.96),
    },
    ("conversation", 4, 4): {
        "round_robin": (0.184, 683.27), "session_hash": (0.346, 422.29),
        "smg_event": (0.227, 611.83), "llmd_affinity": (0.221, 622.33),
    },
    ("synthetic", 8, 1): {
        "round_robin": (0.196, 2.09), "session_hash": (0.534, 1.79),
        "smg_event": (0.651, 1.12), "llmd_affinity": (0.651, 1.05),
    },
    ("synthetic", 8, 2): {
        "round_robin": (0.193, 3.90), "session_hash": (0.533, 2.65),
        "smg_event": (0.648, 1.45), "llmd_affinity": (0.649, 1.14),
    },
    ("synthetic", 8, 4): {
        "round_robin": (0.206, 68.08), "session_hash": (0.533, 17.68),
        "smg_event": (0.640, 3.93), "llmd_affinity": (0.643, 2.71),
    },
}  # fmt: skip

CASES = [(*setting, policy, *row) for setting, rows in ROWS.items() for policy, row in rows.items()]


@cache
def trace(name: str) -> Trace:
    path = TRACES / f"{name}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"not run: {path} is not there (a third-party trace that comes apart from this repository)")
    return load(path)


@pytest.mark.parametrize(
    ("name", "workers", "speed_up", "policy", "hit", "p90_s"),
    [pytest.param(*case, marks=[pytest.mark.nightly] * (case[:3] != ("conversation", 8, 2))) for case in CASES],
)
def test_row(name: str, workers: int, speed_up: int, policy: str, hit: float, p90_s: float) -> None:
    result = run(trace(name), Setup(workers), policy, speed_up)
    # Chunks that are hit make one row 0.007 better, whatever breaks ties and spreads arrivals (0.646 to 0.649).
    allowed = 0.008 if (name, speed_up, policy) == ("synthetic", 4, "smg_event") else 0.005
    assert result.hit == pytest.approx(hit, abs=allowed)
    assert result.ttft_p90_s == pytest.approx(p90_s, rel=0.1)


SYNTHETIC = [(speed_up, policy, hit) for name, _, speed_up, policy, hit, _ in CASES if name == "synthetic"]


@pytest.mark.nightly
@pytest.mark.parametrize(("speed_up", "policy", "hit"), SYNTHETIC)
def test_row_where_prompts_are_cached_whole(
    speed_up: int, policy: str, hit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = KvPool.keep

    def keep_whole(pool: KvPool, work: Work, known_tokens: int) -> None:
        if known_tokens >= work.prompt_tokens:
            keep(pool, work, known_tokens)

    monkeypatch.setattr(KvPool, "keep", keep_whole)
    assert run(trace("synthetic"), Setup(8), policy, speed_up).hit == pytest.approx(hit, abs=0.002)


@pytest.mark.parametrize(("name", "bound"), [("conversation", 0.374), ("synthetic", 0.651)])
def test_ceiling(name: str, bound: float) -> None:
    assert trace(name).ceiling() == pytest.approx(bound, abs=0.001)
