"""The figures of docs/benchmarks/relay.md, made of a few samples of two runs."""

import json
from pathlib import Path

import pytest
from bench.bench import Sample

from bench import page

MACHINE = {"processor": "a processor", "cores": 2, "kernel": "6.1", "python": "3.11"}
SMG = "smg round_robin"


def run_of(folder: Path, name: str, *figures: tuple[str, str, float]) -> str:
    """A file as `--json` writes it."""
    samples = [
        Sample(workload, proxy, figure, 0.5, 100.0, 0.5, 0.1, 0, {}, 9, 0, 9, {"p50": 2.0, "p99": 4.0, "longest": 8.0})
        for workload, proxy, figure in figures
    ]
    file = folder / name
    file.write_text(
        json.dumps({"machine": MACHINE, "versions": {"smg": name}, "samples": [s.as_dict() for s in samples]})
    )
    return str(file)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command has put on a page."""
    text = tmp_path / "relay.md"
    text.write_text(
        f"{page.ANSWER}\nold answer\n{page.ANSWER_END}\nbefore\n{page.BEGIN}\nold figures\n{page.END}\nafter\n"
    )
    monkeypatch.setattr(page, "PAGE", text)
    monkeypatch.setattr(page, "PLOT", tmp_path / "relay" / "agents.svg")
    first = run_of(tmp_path, "1.0", ("w5", "warmroute", 1.0), ("w5", SMG, 4.0), ("w5s", "warmroute", 3.0))
    second = run_of(tmp_path, "1.1", ("w5", "warmroute", 3.0), ("w5s", SMG, 2.0), ("w6-256", SMG, 1.0))
    paced = [(page.PACED, each, 0.0) for each in ("warmroute", SMG)]
    third = run_of(tmp_path, "0.9", ("w4", "warmroute", 14.6), *paced)
    direct = Sample(page.PACED, "none", 0.0, 0.0, 50.0, 0.0, 0.1, 0, {}, 9, 0, 9, {"p50": 0.75, "p99": 1.5})
    alone = json.loads(Path(third).read_text())
    Path(third).write_text(json.dumps(alone | {"samples": [*alone["samples"], direct.as_dict()]}))
    assert page.main([third, first, second]) == 0
    return text.read_text()


def test_the_rest_of_the_page_stays(written: str) -> None:
    assert "\nbefore\n" in written
    assert written.endswith("\nafter\n")
    assert "old" not in written


def test_the_answer_has_the_proxies_of_which_all_is_known(written: str) -> None:
    answer = written.partition("before")[0]
    assert "| warmroute | 1.25 | 2.50 | 500 | 15 |" in answer
    assert SMG not in answer


def test_samples_of_all_runs_make_one_median_beside_the_cheapest_rust_router(written: str) -> None:
    assert "| warmroute | 2.00 | 0.50 | 3.00 | 1.50 |" in written
    assert "| smg round_robin | 4.00 | 1.00 | 2.00 | 1.00 |" in written


def test_machine_and_versions_are_said(written: str) -> None:
    assert "a processor, 2 cores, Linux 6.1, Python 3.11." in written
    assert "Versions: smg 1.1." in written


def test_the_plot_has_the_proxies_that_ran_both(written: str, tmp_path: Path) -> None:
    plot = (tmp_path / "relay" / "agents.svg").read_text()
    assert "warmroute" in plot
    assert "smg round_robin" in plot
