"""`python -m bench floods` at a toy size: a flood of each way to send, and another tenant's figures beside it."""

import pytest
from tests.machine import seconds

from bench import floods

pytestmark = [pytest.mark.full, pytest.mark.timeout(seconds(200))]

ONE_OF_EACH_WAY = ("usage", "half a head", "events of no type")


def test_each_flood_has_a_row_with_its_answers(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--seconds", "0.5", "--connections", "2", "--floods", ",".join(ONE_OF_EACH_WAY)]
    assert floods.main(given) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[2:]] == list(ONE_OF_EACH_WAY)
    for _, before, during, after, chats, *_ in rows[2:]:
        assert all(float(p99_ms) > 0 for p99_ms in (before, during, after, chats))
    answers = {row[0]: int(row[-1].replace(",", "")) for row in rows[2:]}
    assert answers["usage"] > 0 < answers["events of no type"]
    assert answers["half a head"] == 0


def test_no_flood_is_known_by_two_names() -> None:
    sent = [(flood, name in floods.AT_ADMIN) for name, flood in floods.floods("key").items()]
    assert len(set(sent)) == len(sent) >= 20
