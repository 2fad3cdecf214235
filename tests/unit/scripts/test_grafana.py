"""The dashboards are those that the script makes, and ask for metrics that there are."""

import re

import pytest
from scripts.grafana.__main__ import FOLDER, main
from scripts.grafana.panels import BOARDS, Board

from warmroute_proxy.server.base.declared_metrics import BY_NAME


def test_the_files_are_those_that_the_script_makes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert {path.stem for path in FOLDER.glob("*.json")} == {board.uid for board in BOARDS}


@pytest.mark.parametrize("board", BOARDS, ids=[board.uid for board in BOARDS])
def test_each_panel_asks_for_metrics_that_there_are_and_says_what_it_is(board: Board) -> None:
    titles = [panel.title for _, panels in board.rows for panel in panels]
    assert len(titles) == len(set(titles))
    for _, panels in board.rows:
        for panel in panels:
            assert panel.description
            for query in panel.queries:
                names = re.findall(r"warmroute_\w+", query.expr)
                assert names
                assert {re.sub(r"_bucket$", "", name) for name in names} <= set(BY_NAME)
                assert query.expr.count('job=~"$job"') == len(names)
