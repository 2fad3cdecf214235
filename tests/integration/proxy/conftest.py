"""What the proxy's integration tests share."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop

from tests.subjects.small_fleet import engine, proxy, regions

__all__ = ["engine", "proxy", "regions"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that production runs on."""
    return {"uvloop": uvloop.new_event_loop}
