"""`warmroute engines list --by warmth` names first the engine whose drain costs least."""

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
    listed = [engine("a", warm_tokens=900), engine("b", warm_tokens=20), engine("c", warm_tokens=300)]
    admin = SimpleNamespace(ask=lambda _: {"engines": listed})
    monkeypatch.setattr(engines, "admin_apis", lambda _: {"east": admin})
    orders = []
    for options in ([], ["--by", "warmth"]):
        assert engines.run(parser("engines").parse_args(["engines", "list", *options])) == 0
        lines = capsys.readouterr().out.splitlines()
        orders.append([line.split()[0] for line in lines])
        assert "900 tokens warm" in "".join(lines)
    assert orders == [["a", "b", "c"], ["b", "c", "a"]]
