"""A proxy in front of real SGLang: one aggregated server, or a prefill and a decode server."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sglang.behind import Behind
from tests.subjects.sglang import Servers
from warmroute_backend.sglang import Server


@pytest.fixture
def name() -> str:
    """Words that no other test has sent, nor this one before."""
    return f"{uuid.uuid4()} is its name"


@pytest.fixture
def aggregated(sglang_aggregated: Server, tmp_path: Path) -> Iterator[Behind]:
    with Behind(tmp_path, sglang_aggregated) as behind:
        yield behind


@pytest.fixture
def pair(sglang_pair: tuple[Server, Server], tmp_path: Path) -> Iterator[Behind]:
    with Behind(tmp_path, *sglang_pair) as behind:
        yield behind


@pytest.fixture(params=["aggregated", "pair"])
def behind(request: pytest.FixtureRequest, sglang_servers: Servers) -> Behind:
    """Each of the two in turn."""
    found: Behind = request.getfixturevalue(request.param)
    return found
