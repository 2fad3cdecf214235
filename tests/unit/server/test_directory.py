"""Keys and tenants of a database in one process: what is looked for further, and who is let in."""

import asyncio
import logging

import pytest

from warmroute_proxy.server.stores.directory import polling
from warmroute_proxy.server.stores.store_state import StoreAway


async def test_no_error_ends_the_looking_for_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(polling, "POLL_S", 0.0)
    answers = iter([StoreAway("away"), LookupError("secret"), LookupError("secret"), None])
    all_asked = asyncio.Event()

    async def look() -> None:
        answer = next(answers, None)
        if answer is not None:
            raise answer
        all_asked.set()

    watching = asyncio.create_task(polling.keep_looking(look, "the keys"))
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(all_asked.wait(), 10.0)
    watching.cancel()
    assert [record.getMessage() for record in caplog.records] == [
        "the keys of the database cannot be read, and are looked for further: LookupError"
    ]
