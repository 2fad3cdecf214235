"""The proxy's own lateness does not count against an engine."""

import asyncio
import time

import pytest

from warmroute_proxy.server.base.patience import STEPS, Patience

LIMIT_S = 0.16


async def test_a_limit_does_not_pass_while_the_loop_is_held() -> None:
    async with Patience(LIMIT_S):
        time.sleep(3 * LIMIT_S)  # noqa: ASYNC251 - as a step of ours that takes too long
        await asyncio.sleep(LIMIT_S / STEPS)


async def test_it_passes_where_nothing_comes() -> None:
    with pytest.raises(TimeoutError):
        async with Patience(LIMIT_S):
            await asyncio.sleep(60 * LIMIT_S)


async def test_it_does_not_pass_behind_its_end() -> None:
    async with Patience(LIMIT_S):
        await asyncio.sleep(0)
    await asyncio.sleep(1.5 * LIMIT_S)
