"""`warmroute engines list` is a table of all regions; `--by warmth` names first the engine whose drain costs least."""

from types import SimpleNamespace
from typing import Any

import pytest

from warmroute_cli import engines
from warmroute_cli.main import parser


def engine(id_: str, **more: int) -> dict[str, Any]:
    return {"id": id_, "role": "aggregated", "state": "up", "draining_since": {}, "running": 1, **more}


def test_the_engine_that_holds_least_comes_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    east = [engine("a", warm_tokens=9_000), engine("b", warm_tokens=20)]
    west = [engine("c", warm_tokens=300)]
    admins = {
        name: SimpleNamespace(ask=lambda _, of=of: {"engines": of}) for name, of in (("east", east), ("west", west))
    }
    monkeypatch.setattr(engines, "admin_apis", lambda _: admins)
    orders = []
    for options in ([], ["--by", "warmth"]):
        assert engines.run(parser("engines").parse_args(["engines", "list", *options])) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        orders.append([line.split()[0] for line in lines])
        ends = {len(line) for line in [head, *lines]}
        assert (head, len(ends)) == ("engine  role        state  warm tokens  running", 1)
        assert "a       aggregated  up           9,000        1" in lines
    assert orders == [["a", "b", "c"], ["b", "c", "a"]]
