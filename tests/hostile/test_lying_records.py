"""SRV answers that lie name no engine that a config could not name, and hold nobody up."""

from collections.abc import Iterator

import pytest

from tests.subjects.dns_server import NAME, DnsServer
from tests.subjects.documents import config_of
from warmroute_proxy.server.base.config import DiscoveryConfig
from warmroute_proxy.server.discovery.discovery import Candidates, candidates
from warmroute_proxy.server.discovery.source import SourceError
from warmroute_proxy.server.discovery.srv import Records


@pytest.fixture(scope="module")
def server() -> Iterator[DnsServer]:
    made = DnsServer()
    yield made
    made.close()


async def used(server: DnsServer, *records: str) -> Candidates:
    server.records = list(records)
    asked = DiscoveryConfig("records", "srv", 5.0, name=NAME, servers=(server.address,))
    return candidates(config_of(), {"records": (await Records(asked, "east").read()).engines})


async def test_one_cannot_take_the_place_of_an_engine_of_the_config(server: DnsServer) -> None:
    found = await used(server, "0 0 8000 a.test.", "0 0 8000 b.test.")
    assert [engine.id for engine in found.used] == ["b.test:8000"]
    assert "taken by the config" in found.refused["records"][0].reason


NO_HOSTS = (
    'a\\"b.test.', "a\\092b.test.", "a\\032b.test.", "user\\@b.test.", "a\\013\\010x.test.", "a\\/b.test.",
    "a\\#b.test.", "a\\?b.",
)  # fmt: skip


@pytest.mark.parametrize("target", NO_HOSTS)
async def test_a_name_that_is_no_host_is_not_used(server: DnsServer, target: str) -> None:
    found = await used(server, f"0 0 8000 {target}", "0 0 8001 sound.test.")
    assert [engine.id for engine in found.used] == ["sound.test:8001"]


async def test_as_many_records_as_an_answer_holds_are_read_and_bounded(server: DnsServer) -> None:
    try:
        found = await used(server, *(f"0 0 {port} b.test." for port in range(1, 1500)))
    except SourceError:
        return  # over UDP such an answer is cut off, and this server has no TCP
    assert len(found.used) <= 1024


async def test_ports_and_priorities_at_their_edges(server: DnsServer) -> None:
    found = await used(server, "65535 65535 65535 b.test.", "65535 0 0 c.test.")
    assert [engine.id for engine in found.used] == ["b.test:65535"]
