"""`python -m bench budget`: what may cost more, and what fails."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.instructions import CannotCount, Counted, NotInstalled
from bench.proxies import ROOT

from bench import budget

DOCUMENT = {"tolerance": 0.02, "workloads": ["w1", "w5"]}


def counts(monkeypatch: pytest.MonkeyPatch, base: float, here: float) -> None:
    """What is counted of each workload, in place of callgrind."""

    def count(tree: Path, workloads: Sequence[Counted]) -> list[float]:
        return [here if tree == ROOT else base] * len(workloads)

    monkeypatch.setattr(budget, "count", count)
    monkeypatch.setattr(budget, "tree_of", lambda *_: True)


def test_a_raise_widens_the_limit_of_its_workload() -> None:
    found = budget.limits({**DOCUMENT, "raise": [{"workload": "w5", "share": 0.03, "reason": "budgets by leases"}]})
    assert found == pytest.approx({"w1": 1.02, "w5": 1.05})


def test_a_raise_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="the raise of w5 has no reason"):
        budget.limits({**DOCUMENT, "raise": [{"workload": "w5", "share": 0.03, "reason": " "}]})


@pytest.mark.parametrize(("here", "status"), [(1_000_000, 0), (1_029_000, 0), (1_031_000, 1)])
def test_more_than_the_tolerance_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: float, status: int
) -> None:
    counts(monkeypatch, 1_000_000, here)
    assert budget.main([]) == status
    assert ("above the limit: " in capsys.readouterr().out) == bool(status)


def test_a_base_that_is_not_there_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget.main(["--base", "0" * 40]) == 0
    assert capsys.readouterr().out == "not compared: this repository has no commit 000000000000\n"


@pytest.mark.parametrize(("error", "status"), [(CannotCount("ModuleNotFoundError"), 1), (NotInstalled("valgrind"), 0)])
def test_only_what_is_not_installed_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: CannotCount, status: int
) -> None:
    def count(*_: object) -> list[float]:
        raise error

    monkeypatch.setattr(budget, "count", count)
    monkeypatch.setattr(budget, "tree_of", lambda *_: True)
    assert budget.main([]) == status
    assert capsys.readouterr().out == f"not compared: {error}\n"
