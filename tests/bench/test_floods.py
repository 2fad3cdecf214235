"""`python -m bench floods` at a toy size: a row for a flood of each way to send."""

import pytest
from tests.machine import seconds

from bench import floods

pytestmark = [pytest.mark.full, pytest.mark.timeout(seconds(200))]

ONE_OF_EACH_WAY = ("usage", "half a head", "events of no type")


def test_each_flood_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--seconds", "0.3", "--connections", "2", "--floods", ",".join(ONE_OF_EACH_WAY)]
    assert floods.main(given) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0].removeprefix("| ").partition(" (")[0] for row in rows[2:]] == list(ONE_OF_EACH_WAY)
    assert {len(row) for row in rows[2:]} == {len(rows[0])}


def test_no_flood_is_known_by_two_names() -> None:
    sent = [(flood, name in floods.AT_ADMIN) for name, flood in floods.floods("key").items()]
    assert len(set(sent)) == len(sent) >= 20
