"""Both subjects with an EAGLE-3 draft, each started once."""

from collections.abc import Iterator

import httpx
import pytest
from tests.contract.cache.lab import PAGE, kv_events_config
from tests.contract.subject import DEADLINE_S, Subject
from tests.machine import seconds
from tests.subjects.connections import NOT_KEPT
from tests.subjects.embedded import EmbeddedEngine


@pytest.fixture(scope="session")
def embedded_drafting() -> Iterator[str]:
    """An embedded engine whose pages are of pairs of tokens."""
    events = kv_events_config("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    flags = ("--model", "tiny", "--page-size", str(PAGE), "--kv-events-config", events, "--speed", "100")
    engine = EmbeddedEngine([*flags, "--speculative-algorithm", "EAGLE3"])
    yield engine.url
    engine.stop()


@pytest.fixture(params=["embedded", "sglang"])
def drafting(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A subject that drafts."""
    real = request.param == "sglang"
    url = request.getfixturevalue("sglang_speculative").url if real else request.getfixturevalue("embedded_drafting")
    with httpx.Client(base_url=url, timeout=seconds(DEADLINE_S), limits=NOT_KEPT) as client:
        yield Subject(request.param, url, client)
