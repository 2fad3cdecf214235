"""Engines with host names: what does not resolve is looked up again only now and then, and logged once."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.picker.addresses import RESOLVE_EVERY_S, Addresses


async def test_a_name_that_does_not_resolve_is_logged_once_and_looked_up_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    asked: list[str] = []
    both_ask = asyncio.Event()

    async def fails(name: str, _port: None, **_options: Any) -> Any:
        asked.append(name)
        if len(asked) == 2:
            both_ask.set()
        await both_ask.wait()  # at the start no name waits for another
        raise socket.gaierror

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fails, raising=False)
    hosts = [SimpleNamespace(upstream=SimpleNamespace(host=name, port=1)) for name in ("a.invalid", "b.invalid")]
    engines = SimpleNamespace(by_id=dict(enumerate(hosts)))
    addresses = Addresses(cast("Engines", engines), lambda: now_s)
    await addresses.resolve()
    for _ in range(8):
        now_s += RESOLVE_EVERY_S / 10
        addresses.sweep()
        await asyncio.sleep(0)
    assert len(asked) == 2
    now_s += RESOLVE_EVERY_S
    addresses.sweep()
    assert addresses._task is not None
    await addresses._task
    assert len(asked) == 4
    assert len(caplog.records) == 2
