"""`warmroute engines list` is a table of all regions; `--by warmth` names first the engine whose drain costs least."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from warmroute_cli import engines
from warmroute_cli.api import ApiError
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


AWAY = ApiError("the proxy does not answer")


class Admin:
    """The admin listener of an engine's proxy. `polls`: what it says of the drain each time, or how it fails."""

    def __init__(self, polls: Iterable[bool | BaseException], undrain: ApiError | None = None) -> None:
        self.polls = iter(polls)
        self.undrain = undrain
        self.drains = False
        self.flipped = False

    def ask(self, path: str, *_: Any, method: str = "GET", **__: Any) -> dict[str, Any]:
        drained = False
        if path.endswith("/flip"):
            self.flipped = self.flipped or method == "POST"
        elif method == "GET" and self.drains:
            said = next(self.polls)
            if isinstance(said, BaseException):
                raise said
            drained = said
        elif method != "GET":
            if method == "DELETE" and self.undrain is not None:
                raise self.undrain
            self.drains = method == "POST"
        return engine("a") | {"drained": drained}

    def flip(self, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr(engines, "POLL_EVERY_S", 0.0)
        monkeypatch.setattr(engines, "NOTICE_S", 0.0)
        monkeypatch.setattr(engines, "admin_apis", lambda _: {"east": self})
        return engines.run(parser("engines").parse_args(["engines", "flip", "a"]))


def test_a_flip_waits_while_the_proxy_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin([False, AWAY, ApiError("starting", 503), True])
    assert admin.flip(monkeypatch) == 0
    assert (admin.flipped, admin.drains) == (True, False)


@pytest.mark.parametrize("stop", [ApiError("no such key", 401), KeyboardInterrupt()], ids=["refused", "Ctrl-C"])
def test_an_engine_whose_flip_ends_early_serves_in_its_old_role(
    stop: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin([False, stop])
    with pytest.raises(type(stop)):
        admin.flip(monkeypatch)
    assert (admin.flipped, admin.drains) == (False, False)


def test_an_engine_that_still_drains_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin([KeyboardInterrupt()], undrain=AWAY)
    with pytest.raises(ApiError):
        admin.flip(monkeypatch)
    assert "a still drains: `warmroute engines undrain a`" in capsys.readouterr().err
