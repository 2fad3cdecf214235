"""The search for a plan: what it compares, what it takes, and what it says of targets and prices."""

import json
import re
import tomllib
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from warmroute_backend.plan.choose import average_load, make_plan
from warmroute_backend.plan.deployment import Plan, Traffic
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.request import AGGREGATED, PlanRequest
from warmroute_cli.main import main
from warmroute_cli.plan import search as searching
from warmroute_cli.plan.costs import prices
from warmroute_cli.plan.inputs import average_of, average_trace
from warmroute_cli.plan.search import candidates, search
from warmroute_cli.plan.sizing import Sizing, simulate, speeds
from warmroute_cli.plan.targets import Targets
from warmroute_lab.replay.loaders import load
from warmroute_lab.replay.trace import Trace

pytestmark = pytest.mark.full

TRAFFIC = Traffic(20_000, 200, 4.0, 0.9)
TRACE = average_trace(TRAFFIC)


@cache
def played(plan: Plan, asked: PlanRequest, trace: Trace) -> Sizing:
    """What a plan does, played once for all tests: it is the same each time."""
    return simulate(plan, asked, trace)


@pytest.fixture(autouse=True)
def play_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "simulate", played)


def request(model: str, gpus: str, traffic: Traffic = TRAFFIC, **more: object) -> PlanRequest:
    return replace(PlanRequest(known_model(model), parse_cluster(gpus), traffic=traffic), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("targets", [Targets(), Targets(ttft_p90_s=1.0, token_p90_s=0.006)], ids=["none", "targets"])
def test_bounds_leave_out_nothing_that_is_better(objective: str, targets: Targets) -> None:
    asked = request("gpt-oss-120b", "4xH100", objective=objective)
    bounded = search(asked, TRACE, targets)
    exhaustive = search(asked, TRACE, targets, bounded=False)
    assert bounded.best.sizing == exhaustive.best.sizing
    assert len(bounded.played) <= len(exhaustive.played)


def test_a_bound_is_not_above_what_was_played() -> None:
    asked = request("gpt-oss-120b", "4xH100")
    for candidate in candidates(asked):
        plan = make_plan(candidate)
        least = speeds(plan, average_load(candidate), TRAFFIC.requests_per_s)
        sizing = played(plan, candidate, TRACE)
        if sizing.saturated:  # its queue empties after the last request came: shares are of a longer time
            continue
        for name in ("prefill_utilisation", "decode_utilisation", "kv_utilisation"):
            assert getattr(least, name) <= getattr(sizing, name)
        assert least.ttft_s <= sizing.ttft_p90_s
        assert least.token_s <= sizing.token_p90_s
        assert least.answer_s <= sizing.answer_p90_s


@pytest.mark.nightly
def test_memory_is_found_where_the_first_choice_has_too_little() -> None:
    """36,000 tokens a second on one node: KV of 16 bits answers after a minute, of 8 bits after seconds."""
    traffic = Traffic(60_000, 400, 0.6, 0.9)
    asked = request("kimi-k2.5", "8xH200", traffic, storage="none")
    found = search(asked, average_trace(traffic), Targets())
    assert found.best.missed == ()
    assert found.best.sizing.ttft_p90_s < 10
    assert found.best.plan.engines[0].shape.kv_type == "fp8_e4m3"
    late = [each for each in found.played if each.plan.engines[0].shape.kv_type == "bf16"]
    assert late
    assert all(each.missed for each in late)


def test_equal_words_are_not_equal_plans() -> None:
    """Each side of a split has its own attention groups, and each combination is compared."""
    groups = {(each.attention_dp, each.decode_dp) for each in candidates(request("kimi-k2.5", "2x8xH200", tp=8))}
    assert {(8, 8), (1, 8), (8, 1), (1, 1), (8, None)} <= groups


def test_over_nodes_stages_and_wide_experts_are_compared() -> None:
    r1 = [*candidates(request("deepseek-r1", "13x8xH100"))]
    assert any(each.all_to_all == "deepep" and each.split == (32, 72) and each.tp is None for each in r1)
    assert any(each.pp == 2 and each.tp == 8 for each in candidates(request("kimi-k2-instruct", "2x8xH200")))
    assert not any(each.all_to_all == "deepep" or each.pp for each in candidates(request("deepseek-r1", "8xH200")))


def test_wide_experts_decode_more_than_engines_of_two_nodes() -> None:
    """LMSYS: 5.2 times the tokens of TP 16 on the same GPUs, of which the kernels of then are a part."""
    traffic = Traffic(2000, 100, 100.0, 0.0)
    asked = request("deepseek-r1", "12x8xH100", traffic, objective="throughput", split=(32, 64), speculation=False)
    wide, narrow = (
        speeds(make_plan(each), average_load(each), traffic.requests_per_s)
        for each in (replace(asked, all_to_all="deepep"), replace(asked, tp=16))
    )
    assert wide.decode_utilisation < narrow.decode_utilisation / 1.5


@pytest.mark.nightly
def test_bounds_leave_out_nothing_that_is_better_over_nodes() -> None:
    traffic = Traffic(8000, 100, 8.0, 0.5)
    asked = request("deepseek-r1", "2x8xH200", traffic, split=AGGREGATED, hicache=False, speculation=False)
    trace = average_trace(traffic)
    bounded, exhaustive = (search(asked, trace, Targets(), bounded=each) for each in (True, False))
    assert bounded.best.sizing == exhaustive.best.sizing
    assert {each.plan.engines[0].shape.pp for each in exhaustive.played} >= {1, 2}
    assert {each.plan.engines[0].shape.all_to_all for each in exhaustive.played} == {"none", "deepep"}


def test_drafts_and_tiers_are_dimensions() -> None:
    found = search(request("gpt-oss-120b", "2xH100", split=AGGREGATED), TRACE, Targets())
    tails = {each.sizing.division.rpartition(", ")[2] for each in found.played}
    assert {"no drafts", "drafts of 1", "drafts of 5", "no HiCache", "store"} <= tails


def test_the_first_choice_stays_where_it_reaches_the_targets() -> None:
    found = search(request("gpt-oss-120b", "8xH100"), TRACE, Targets(ttft_p90_s=2.0))
    assert found.best.missed == ()
    assert {each.plan.engines[0].shape.kv_type for each in found.played} == {"bf16"}


def test_a_target_that_nothing_reaches_is_named() -> None:
    targets = Targets(token_p90_s=0.001)
    found = search(request("gpt-oss-120b", "2xH100"), TRACE, targets)
    assert found.ruled_out["a token alone takes longer than its target"] > 0
    assert any(each.startswith("time per token p90") for each in found.best.missed)


@pytest.mark.parametrize(("times", "word"), [(0.7, "yes"), (0.9, "maybe"), (1.1, "maybe"), (1.4, "no")])
def test_a_target_near_the_figure_may_be_reached(times: float, word: str) -> None:
    """Eight of ten published steps are within 39 % of the roofline."""
    asked = request("gpt-oss-120b", "2xH100", split=AGGREGATED)
    sizing = simulate(make_plan(asked), asked, TRACE)
    assert Targets(token_p90_s=sizing.token_p90_s / times).reached(sizing) == word


def test_a_division_that_is_asked_for_is_not_compared() -> None:
    asked = request("gpt-oss-120b", "8xH100", split=AGGREGATED, tp=8, speculation=False, chunk_tokens=8192)
    played = search(replace(asked, hicache=True, storage="none"), TRACE, Targets()).played
    assert [each.sizing.division for each in played] == ["1 aggregated, no drafts"]


def test_prices_pay_for_the_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "gpt-oss-120b", "--gpus", "8xH100", "--input", "20000", "--output", "200"]
    options += ["--requests-per-s", "4", "--gpu-hour", "2", "--margin", "0.25", "--out", str(tmp_path)]
    assert main(["plan", *options]) == 0
    page = capsys.readouterr().out
    assert "pays $16.00 an hour and 25% more" in page
    (model,) = tomllib.loads((tmp_path / "proxy.toml").read_text())["model"]
    hit = float(re.findall(r"  (0\.\d\d) +\d", page[page.index("on the same GPUs") :])[0])
    usd = (
        (
            Decimal(model["input"]) * Decimal(20_000 * (1 - hit))
            + Decimal(model["cached"]) * Decimal(20_000 * hit)
            + Decimal(model["output"]) * 200
        )
        * 4
        * 3600
        / 10**6
    )
    assert float(usd) == pytest.approx(16 * 1.25, rel=0.05)
    assert "free" not in model


def test_prices_are_in_every_config_and_stay_over_an_edit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    options = ["--model", "gpt-oss-120b", "--gpus", "2x8xH100", "--pd", "8+8", "--input", "20000", "--output", "200"]
    assert main(["plan", *options, "--gpu-hour", "2", "--out", str(first)]) == 0
    assert main(["plan", "--check", str(first / "plan.toml"), "--out", str(again)]) == 0
    capsys.readouterr()
    for folder in (first, again):
        values = json.loads((folder / "helm" / "values.json").read_text())["config"]
        texts = [(folder / "proxy.toml").read_text(), (folder / "kubernetes" / "proxy.toml").read_text(), values]
        rates = [tomllib.loads(text)["model"][0]["output"] for text in texts]
        assert len(set(rates)) == 1
        assert float(rates[0]) > 0


def test_traffic_that_is_not_served_has_no_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "gpt-oss-120b", "--gpus", "1xH100", "--input", "8000", "--output", "400", "--tp", "1"]
    options += ["--requests-per-s", "200", "--kv-dtype", "bf16", "--mem-fraction", "0.8", "--speculation", "off"]
    assert main(["plan", *options, "--gpu-hour", "2.5", "--out", str(tmp_path / "out")]) == 2
    assert "do not serve this traffic" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_price_is_of_gpu_seconds_however_they_are_grouped() -> None:
    """An attention group of one GPU computes an eighth of what one of eight does, at an eighth of the cost."""
    traffic = Traffic(20_000, 400, 0.5, 0.5)
    found = []
    for groups in (1, 8):
        asked = request("kimi-k2.5", "2x8xH200", traffic, split=(8, 8), attention_dp=groups, decode_dp=1)
        plan = make_plan(asked)
        found.append(prices(plan, asked, simulate(plan, asked, average_trace(traffic)), 2.5, 0.0))
    assert float(found[0].input_usd) == pytest.approx(float(found[1].input_usd), rel=0.05)
    assert float(found[0].output_usd) == pytest.approx(float(found[1].output_usd), rel=0.05)


def test_a_mixed_trace_rules_out_nothing_by_its_mean(tmp_path: Path) -> None:
    """One long prompt in ten: its mean says nothing of the median."""
    lines: list[dict[str, object]] = [
        {"timestamp": 500 * at, "input_length": 40_000 if at % 10 == 0 else 600, "output_length": 40, "hash_ids": []}
        for at in range(200)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps({**line, "hash_ids": ids(number)}) for number, line in enumerate(lines)))
    trace = load(file)
    asked = request("gpt-oss-120b", "2xH100", average_of(trace), objective="throughput")
    targets = Targets(ttft_p50_s=0.15)
    bounded, exhaustive = (search(asked, trace, targets, bounded=each) for each in (True, False))
    assert bounded.best.sizing == exhaustive.best.sizing


def ids(number: int) -> list[int]:
    return [number * 100 + at for at in range(79 if number % 10 == 0 else 2)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpus", "3x8xH200", "--tp", "16"), "engines of 16 GPUs do not divide 24"),
        (("--gpus", "8xH200", "--pd", "off", "--attention-dp", "8+4"), "are those of prefill and of decode"),
        (("--gpus", "8xH200", "--mem-fraction", "0.95"), "memory_fraction 0.950"),
    ],
)
def test_what_could_not_be_deployed_is_refused(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--model", "kimi-k2.5", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--gpu-hour", "2"], ["--ttft-p90", "2"], ["--time-per-token", "2"], ["--goodput"]])
def test_a_target_without_traffic_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "gpt-oss-120b", "--gpus", "8xH100", *words]) == 2
    said = capsys.readouterr().err
    assert words[0] in said
    assert "is about traffic" in said
