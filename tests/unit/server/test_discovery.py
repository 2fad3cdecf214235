"""Sources of engines by themselves, and which of the engines that they name are used."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine import seconds
from tests.subjects.dns_server import NAME, DnsServer
from tests.subjects.documents import config_of

from warmroute_proxy.server.base.config import Config, DiscoveryConfig
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.discovery.discovery import MAX_FILE_BYTES, Discovery, Folder, candidates
from warmroute_proxy.server.discovery.source import MAX_ENGINES, SourceError
from warmroute_proxy.server.discovery.srv import LONGEST_S, Records

TENANTS = [{"name": name, "key_sha256": [f"{number:064x}"]} for number, name in enumerate(("one", "other"))]


def config(**tables: Any) -> Config:
    regions = [{"name": "east"}, {"name": "west", "url": "http://west"}]
    return config_of(**{"region": regions, "engine": [engine("a")], "tenant": TENANTS, **tables})


def engine(name: str, **keys: Any) -> dict[str, Any]:
    return {"id": name, "url": f"http://{name}", "region": "east", **keys}


def test_the_config_goes_before_sources_and_an_earlier_source_before_a_later_one() -> None:
    found = candidates(
        config(),
        {
            "first": [engine("b"), engine("a", url="http://other"), engine("c", url="http://a")],
            "second": [engine("b", url="http://other"), engine("d")],
        },
    )
    assert [each.id for each in found.used] == ["b", "d"]
    assert {source: [one.engine for one in refused] for source, refused in found.refused.items()} == {
        "first": ["a", "c"],
        "second": ["b"],
    }
    assert "taken by the config" in found.refused["first"][0].reason
    assert "taken by first" in found.refused["second"][0].reason


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"modles": ["m"]}, "unknown key"),
        ({"url": "b:1"}, "must start with http"),
        ({"url": "http://a..b:1"}, "names a host with an empty or too long part"),
        ({"models": ["n"]}, "is the name of no [[model]]"),
        ({"kind": "openai"}, "would be shared by the tenants"),
        ({"key_file": "/nowhere/key"}, "cannot read the engine key"),
        ({"key_file": "a\0b"}, "cannot read the engine key"),
        ({"role": 1}, "is not one of"),
    ],
)
def test_an_engine_with_a_problem_is_not_used_and_the_others_are(keys: dict[str, Any], problem: str) -> None:
    found = candidates(config(), {"files": [engine("b", **keys), engine("c")]})
    assert [each.id for each in found.used] == ["c"]
    assert problem in found.refused["files"][0].reason


def test_engines_of_other_regions_are_for_other_proxies() -> None:
    found = candidates(config(), {"files": [engine("b", region="west")]})
    assert (found.used, found.refused) == ([], {"files": []})


async def test_a_file_names_its_engine_and_paths_start_at_the_folder(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('url = "http://b"\nkey_file = "b.key"')
    (tmp_path / "notes.txt").write_text("not an engine")
    found = await Folder(tmp_path, 1.0, "east").read()
    assert found.engines == [engine("b", key_file=str(tmp_path / "b.key"))]


@pytest.mark.parametrize("text", ["", 'region = "east"\n', "a = " + "[" * 5_000])
async def test_a_file_that_is_half_written_names_what_it_named_before(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.toml").write_text('url = "http://b"')
    (tmp_path / "c.toml").write_text('url = "http://c"')
    folder = Folder(tmp_path, 1.0, "east")
    before = (await folder.read()).engines
    (tmp_path / "b.toml").write_text(text)
    found = await folder.read()
    assert (found.engines, len(found.problems)) == (before, 1)


async def test_a_folder_has_limits(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f'url = "http://a/{"x" * MAX_FILE_BYTES}"')
    for number in range(MAX_ENGINES):
        os.link(tmp_path / "a.toml", tmp_path / f"b{number}.toml")
    found = await Folder(tmp_path, 1.0, "east").read()
    assert not found.engines
    assert f"only {MAX_ENGINES} are read" in found.problems[0]
    assert f"larger than {MAX_FILE_BYTES} bytes" in found.problems[1]


async def test_a_folder_that_is_not_there_is_away(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        await Folder(tmp_path / "nowhere", 1.0, "east").read()


async def test_the_reason_why_a_source_names_no_engine_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "b.toml").write_text('url = "http://b')
    discovery = Discovery(tmp_path, lambda: None)
    discovery.replace(config(discovery=[{"id": "files", "kind": "folder", "path": str(tmp_path)}]))
    async with asyncio.timeout(seconds(10)):
        while not discovery.problems():
            await asyncio.sleep(0.01)
    discovery.close()
    assert "b.toml: Unterminated string" in caplog.text
    assert "is away, and its last engines stay: it names no engine that can be read" in caplog.text
    assert [each.text for each in discovery.problems()] == [
        "discovery files is away: the 0 engines that it named last stay",
        "discovery files: 1 of its engines cannot be read",
    ]


@pytest.fixture(scope="module")
def dns_server() -> Iterator[DnsServer]:
    server = DnsServer()
    yield server
    server.close()


def records(server: DnsServer, **keys: Any) -> Records:
    made = DiscoveryConfig("records", "srv", 5.0, name=NAME, servers=(server.address,), **keys)
    return Records(made, "east")


@pytest.mark.parametrize(("ttl_s", "next_s"), [(0, 5.0), (60, 60.0), (86_400, LONGEST_S)])
async def test_a_name_is_asked_again_when_its_answer_is_too_old(
    dns_server: DnsServer, ttl_s: int, next_s: float
) -> None:
    dns_server.ttl_s, dns_server.records = ttl_s, ["10 0 8000 a.test."]
    assert (await records(dns_server).read()).next_s == next_s


async def test_targets_of_the_lowest_priority_are_engines(dns_server: DnsServer) -> None:
    dns_server.records = ["10 0 8000 b.test.", "10 5 8000 a.test.", "20 0 8000 c.test.", "10 0 8001 a.test."]
    found = await records(dns_server, engine={"models": ["m"]}).read()
    assert [each["id"] for each in found.engines] == ["a.test:8000", "a.test:8001", "b.test:8000"]
    assert found.engines[0] == engine("a.test:8000", models=["m"])


async def test_a_service_that_is_decidedly_not_there_names_no_engine(dns_server: DnsServer) -> None:
    dns_server.records = ["0 0 0 ."]
    assert (await records(dns_server).read()).engines == []


async def test_a_server_that_fails_is_away(dns_server: DnsServer) -> None:
    dns_server.records = None
    with pytest.raises(SourceError, match="cannot be queried"):
        await records(dns_server).read()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"kind": "folder"}, "discovery[0].path: is missing"),
        ({"kind": "srv"}, "discovery[0].name: is missing"),
        ({"kind": "folder", "path": "x", "scheme": "http"}, 'discovery[0].scheme: is for kind = "srv"'),
        ({"kind": "srv", "name": "x", "path": "x"}, 'discovery[0].path: is for kind = "folder"'),
        ({"kind": "srv", "name": "x", "servers": ["x"]}, "discovery[0].servers:"),
        ({"kind": "srv", "name": "x", "engine": {"modles": []}}, "engine[of srv-0].modles: unknown key"),
        ({"kind": "srv", "name": "x", "engine": {"url": "http://x"}}, "engine[of srv-0].url: follows from the record"),
    ],
)
def test_each_fault_of_a_source_is_named(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(discovery=[keys])
    assert problem in str(error.value)


def test_with_a_source_a_config_needs_no_engine() -> None:
    found = config_of(Path("/etc"), engine=None, discovery=[{"path": "engines.d"}])
    assert found.discoveries[0].path == Path("/etc/engines.d")
