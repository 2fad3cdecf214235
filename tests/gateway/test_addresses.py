"""Engines with host names: one that does not resolve is looked up again now and then, and logged once.

How many engines a picker names to its gateway.
"""

import asyncio
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.gateway.test_protocol import CHAT, answers
from tests.subjects.ext_proc_client import Conversation, body, head
from tests.subjects.gateway import Picker
from tests.subjects.processes import chat
from tests.subjects.scripted import ScriptedEngine
from tests.subjects.stopped import Several
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.picker.addresses import RESOLVE_EVERY_S, Addresses

DESTINATION = "x-gateway-destination-endpoint"


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


@pytest.mark.parametrize(("count", "of", "named"), [(1, 2, 1), (2, 2, 2), (3, 2, 3), (3, 1, 1)])
def test_a_picker_names_as_many_engines_as_its_gateway_reads(tmp_path: Path, count: int, of: int, named: int) -> None:
    """The second of three is another engine; with one engine there is nothing to fall back to."""
    with (
        Several(ScriptedEngine(f"e{number}", answers) for number in range(of)) as engines,
        Picker(tmp_path / "p", [each.toml() for each in engines], extra=f"picker_addresses = {count}\n") as picker,
        picker.channel() as channel,
        Conversation(channel) as asked,
    ):
        asked.send(head(CHAT, picker.keys[0]), body(json.dumps(chat("a")).encode()))
        first, _ = asked.until_body_ends()
    given = first.request_headers.response.header_mutation.set_headers
    (where,) = [each.header.raw_value.decode() for each in given if each.header.key == DESTINATION]
    assert len(where.split(",")) == named
    assert len(set(where.split(","))) == min(count, of)
