"""What the proxy's integration tests share."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import httpx
import pytest
import uvloop

from tests.subjects.processes import ProxyProcess
from tests.subjects.small_fleet import engine, proxy, regions

__all__ = ["engine", "proxy", "regions"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that production runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def raw(proxy: ProxyProcess) -> Iterator[httpx.Client]:
    """A client of a module's proxy that adds nothing but the first key."""
    with proxy.client() as found:
        yield found


@pytest.fixture(scope="module")
def client(raw: httpx.Client) -> httpx.Client:
    """The same one, in modules without an official client."""
    return raw
