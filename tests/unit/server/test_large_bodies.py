"""Large bodies, where the process that reads them cannot be started."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.subjects.documents import config_of

from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.intake import large_bodies
from warmroute_proxy.server.intake.large_bodies import LargeBodies


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")])
async def test_a_reader_that_cannot_be_started_refuses_one_body_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    asked: list[Any] = []
    refused: list[Any] = []
    starts: list[Exception] = [error]

    class Reader:
        def __init__(self, *_: Any) -> None:
            if starts:
                raise starts.pop()

        def ask(self, request: Any) -> None:
            asked.append(request)

        def kill(self) -> None: ...

    monkeypatch.setattr(large_bodies, "LargeReader", Reader)

    callers: Any = SimpleNamespace(secrets=None)
    made: Any = LargeBodies(config_of(), callers, asyncio.get_running_loop(), Metrics())
    caller = SimpleNamespace(tenant=SimpleNamespace(name="t"), key_id="", region=None, path="/v1/chat/completions")
    exchange = SimpleNamespace(request=SimpleNamespace(headers={}, deployment=""), on_gone=None, fail=lambda: None)
    for _ in range(2):
        made.read(exchange, SimpleNamespace(path="/x", size=10), caller, lambda found, _: refused.append(found))
    assert [each.status for each in refused] == [503]
    assert len(asked) == 1
