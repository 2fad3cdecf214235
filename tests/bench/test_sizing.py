"""The table of sizes, small."""

import pytest
from tests.bench.patient import patient

from bench import sizing


def test_a_proxy_of_two_processes_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = sizing.proxy_of
    monkeypatch.setattr(sizing, "proxy_of", lambda *words, **named: patient(impatient(*words, **named)))
    assert sizing.main(["--processes", "2", "--workloads", "w1"], "here") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "here"
    row = rows[-1].strip("| ").split(" | ")
    assert row[:2] == ["2", "2 KB in, 1 KB out"]
    each_us, of_core, of_cores = (int(each.removesuffix(" us").replace(",", "")) for each in row[2:5])
    assert each_us > 0
    assert of_cores == pytest.approx(2 * sizing.BUSY * of_core, abs=2)
    assert int(row[5]) > 20
