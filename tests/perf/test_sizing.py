"""The table of sizes, small."""

import pytest

from tests.perf import sizing


def test_a_proxy_of_two_processes_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert sizing.main(["--processes", "2", "--workloads", "w1"], "here") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "here"
    row = rows[-1].strip("| ").split(" | ")
    assert row[:2] == ["2", "2 KB in, 1 KB out"]
    assert int(row[2].removesuffix(" us").replace(",", "")) > 0
    assert int(row[4]) > 20
