"""Small things that a client, a page or an engine must not be able to do."""

import logging
from collections.abc import Iterator

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, chat
from tests.unit.server.test_kv_feed import Fed

from .conftest import HOSTILE, INNOCENT

PER_MINUTE = 5


@pytest.fixture(scope="module")
def proxy(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    limit = f"requests_per_minute = {PER_MINUTE}"
    with ProxyProcess(tmp_path_factory.mktemp("rough") / "p", [engine.toml("east")], second=limit) as started:
        yield started


def test_a_request_that_joins_another_counts_in_the_minute(proxy: ProxyProcess) -> None:
    """One key gave 300 answers under a limit of 5."""
    with proxy.client(HOSTILE) as client:
        given = [
            client.post("/v1/chat/completions", json=chat("once", max_tokens=1), headers={"idempotency-key": "a"})
            for _ in range(3 * PER_MINUTE)
        ]
    assert given[0].status_code == 200
    statuses = [each.status_code for each in given]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) <= PER_MINUTE + 2  # the limit fills again meanwhile
    assert "retry-after" in given[statuses.index(429)].headers


@pytest.mark.parametrize(
    "path", ["/admin/view", "/admin/view/usage", "/admin/view/receipts", "/admin/workers", "/metrics", "/admin/none"]
)
@pytest.mark.parametrize("key", ["tenant", "operator", "none"])
def test_nothing_keeps_what_a_key_opens_at_the_admin_port(proxy: ProxyProcess, path: str, key: str) -> None:
    with proxy.admin() as admin:
        named = {"tenant": proxy.keys[INNOCENT], "operator": proxy.admin_key, "none": "x"}[key]
        given = admin.get(path, headers={"authorization": f"Bearer {named}"})
    assert given.headers["cache-control"] == "no-store", given.status_code


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/models"])
def test_nothing_keeps_what_a_key_opens(proxy: ProxyProcess, path: str) -> None:
    with proxy.client(INNOCENT) as client:
        assert client.get(path).headers["cache-control"] == "no-store"


OF_PAGES = {
    "a form": {"origin": "https://evil.example", "content-type": "text/plain", "sec-fetch-site": "cross-site"},
    "a form of a sandbox": {"origin": "null"},
    "a page with a name that leads here": {"origin": "http://rebound.example", "sec-fetch-site": "same-origin"},
    "an image": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    "another port of this machine": {"sec-fetch-site": "same-site"},
}


@pytest.mark.parametrize(
    "path", ["/flush_cache", "/engine/faults", "/abort_request", "/v1/chat/completions", "/generate"]
)
@pytest.mark.parametrize("headers", OF_PAGES.values(), ids=OF_PAGES)
def test_an_embedded_engine_takes_nothing_of_a_page(engine: EngineProcess, path: str, headers: dict[str, str]) -> None:
    method = "GET" if "origin" not in headers and path == "/flush_cache" else "POST"
    assert httpx.request(method, f"{engine.url}{path}", headers=headers, timeout=seconds(10)).status_code == 403


def test_an_embedded_engine_takes_the_same_of_a_program(engine: EngineProcess) -> None:
    typed = {"sec-fetch-site": "none"}
    assert httpx.post(f"{engine.url}/flush_cache", timeout=seconds(10)).status_code == 200
    assert httpx.get(f"{engine.url}/flush_cache", headers=typed, timeout=seconds(10)).status_code == 200


@pytest.mark.parametrize("how", ["unreadable", "anew"])
def test_an_engine_repeats_no_line_of_the_log_without_end(caplog: pytest.LogCaptureFixture, how: str) -> None:
    fed = Fed()
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            fed.feed.live(number if how == "unreadable" else 0, b"\xc1", 1.0)
    lines = [record for record in caplog.records if "KV events" in record.getMessage()]
    assert 1 <= len(lines) <= 2
