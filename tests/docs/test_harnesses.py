"""docs/reference/harnesses.md has a row for each tested program, with the version that is installed."""

from pathlib import Path

import pytest
from tests.field.agents import page
from tests.field.agents.cases import CASES

from warmroute.contract.compactions import MARKS
from warmroute.contract.receipt import LOSS_CLASSES
from warmroute_cli.run.programs import PROGRAMS


def test_each_program_that_runs_is_tested_and_each_has_a_row() -> None:
    assert set(CASES) == set(PROGRAMS)
    assert list(page.written()) == [case.title for case in CASES.values()]


@pytest.mark.parametrize("name", list(CASES))
def test_a_row_is_that_of_the_pinned_program(name: str) -> None:
    case = CASES[name]
    _, version, turns, lineages, off, on, ideal, losses = page.written()[case.title]
    assert version == page.pinned(case.package)
    assert int(turns) >= 8
    assert 0 <= int(lineages) - case.agents <= case.titles
    hit_off, hit_on, most = (float(cell.removesuffix("%")) for cell in (off, on, ideal))
    assert hit_off <= hit_on
    assert hit_on >= most - 1
    assert {loss.rpartition(" ")[0] for loss in losses.split(", ")} <= set(LOSS_CLASSES)


def test_what_a_program_lacks_is_said() -> None:
    text = page.PAGE.read_text()
    for case in CASES.values():
        for thing in case.lacks:
            assert f"| {case.title} | {thing} |" in text


def test_each_mark_of_a_compaction_is_listed_with_its_source() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "harnesses.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for mark in MARKS:
        words = [f"`{line}`" for line in mark.words.strip().split("\n")]
        row = [row for row in rows if all(each in row for each in words) and f"| {mark.role} |" in row]
        assert row, mark.words
        assert all(program.split()[0] in row[0] for program in mark.source.split(", ") if program[0].isupper())
