"""Several kinds of GPUs, compared by what tokens cost on them."""

import json
import tomllib
from pathlib import Path

import pytest

from warmroute_cli.main import main

pytestmark = pytest.mark.full

OPTIONS = ["plan", "--model", "qwen3-8b", "--input", "4000", "--output", "200", "--requests-per-s", "1"]


def test_the_cheapest_kind_that_serves_the_traffic_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*OPTIONS, "--gpus", "1xH200,1xH100", "--gpu-hour", "H200=9,H100=2", "--ttft-p90", "5s", "--json"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["gpus"] for each in found["kinds"]] == ["1xH100", "1xH200"]
    first, second = found["kinds"]
    tokens_per_hour = first["requests_per_s"] * 3600 * 4200
    assert first["usd_per_million"] == pytest.approx(2 / tokens_per_hour * 1e6, rel=0.01)
    assert first["usd_per_million"] < second["usd_per_million"]
    assert second["requests_per_s"] >= first["requests_per_s"]
    assert tomllib.loads((tmp_path / "plan.toml").read_text())["plan"]["gpus"] == "1xH100"


@pytest.mark.nightly
def test_a_kind_that_does_not_fit_or_not_serve_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", "llama-3.3-70b", "--input", "4000", "--output", "100", "--gpus", "1xL40S,4xH100"]
    assert main([*words, "--requests-per-s", "0.5", "--gpu-hour", "1"]) == 0
    page = capsys.readouterr().out
    table = page.partition("GPUs compared")[2].splitlines()
    assert table[2].startswith("4xH100")
    assert table[3].startswith("1xL40S")
    assert "none: " in table[3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*OPTIONS, "--gpus", "1xH100,1xH200", "--gpu-hour", "H100=2"], "no price of H200"),
        ([*OPTIONS, "--gpus", "1xH100,1xH200"], "compared by cost"),
        ([*OPTIONS, "--gpus", ",".join(["1xH100"] * 17), "--gpu-hour", "1"], "16 are compared at most"),
        (["plan", "--model", "qwen3-8b", "--gpus", "1xH100,1xH200"], "under traffic"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
