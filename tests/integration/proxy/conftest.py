"""What the proxy's integration tests share."""

import asyncio

import pytest
import uvloop


@pytest.fixture(scope="session")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop that production runs on."""
    return uvloop.EventLoopPolicy()
