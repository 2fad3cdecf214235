"""A stolen forward token at the other proxy of the region: the proxies share used tokens by Redis."""

import hashlib
import json
import time
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import PLAIN, ProxyProcess, chat, until
from tests.subjects.stores import Redis
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.regions.forward_claim import Forwards

from .conftest import SharingProxies

CHAT = "/v1/chat/completions"


class Recorded:
    """A request with its token, as a proxy of west forwards it. A reader of the token can send both anywhere."""

    def __init__(
        self,
        folder: Path,
        body: dict[str, Any] | None = None,
        *,
        spaces: int = 0,
        method: str = "POST",
        path: str = CHAT,
    ) -> None:
        """`spaces`: behind the body."""
        self.method, self.path = method, path
        self.content = b"" if body is None else json.dumps(body).encode() + b" " * spaces
        forwards = Forwards(Secrets((folder / "secret").read_bytes()), "west", time.time, token_hex)
        digest, request_id = hashlib.sha256(self.content).hexdigest(), f"wr-{token_hex(12)}"
        wanted = request_id if path == CHAT else path
        self.headers = {"x-warmroute-forward": forwards.sign("first", "first", wanted, "east", digest, 600.0)}

    def send(self, proxy: ProxyProcess) -> httpx.Response:
        with httpx.Client(base_url=proxy.url, verify=PLAIN, timeout=seconds(30)) as client:
            return client.request(self.method, self.path, content=self.content, headers=self.headers)


def many_values() -> dict[str, Any]:
    """A body that another process reads."""
    body = chat(max_tokens=2)
    body["messages"][1]["content"] = [{"type": "text", "text": "a"} for _ in range(6_000)]
    return body


def refused(answer: httpx.Response) -> bool:
    return answer.status_code == 401 and answer.json()["error"]["message"] == "the forward token was used before"


@pytest.mark.parametrize("kind", ["small", "many values", "large"])
def test_a_request_is_computed_by_one_proxy_of_a_region(proxies: SharingProxies, kind: str) -> None:
    one, other = proxies.start(), proxies.start()
    body = many_values() if kind == "many values" else chat(max_tokens=2)
    recorded = Recorded(proxies.folder, body, spaces=3_000_000 if kind == "large" else 0)
    first = recorded.send(one)
    assert first.status_code == 200, first.text
    assert refused(recorded.send(other))
    assert refused(recorded.send(one))
    assert Recorded(proxies.folder, chat("again", max_tokens=2)).send(other).status_code == 200
    assert "warmroute_nonces_missed_total 0" in one.metrics()


def test_a_question_is_answered_by_one_proxy_of_a_region(proxies: SharingProxies) -> None:
    one, other = proxies.start(), proxies.start()
    recorded = Recorded(proxies.folder, method="GET", path="/v1/usage")
    assert recorded.send(one).status_code == 200
    assert refused(recorded.send(other))


def test_while_redis_is_away_forwards_are_served_and_each_proxy_knows_its_own_tokens(
    proxies: SharingProxies, redis: Redis
) -> None:
    proxies.timeout_s = 0.25
    one, other = proxies.start(), proxies.start()
    redis.freeze()
    try:
        recorded = Recorded(proxies.folder, chat(max_tokens=2))
        assert recorded.send(one).status_code == 200
        assert refused(recorded.send(one))
        assert recorded.send(other).status_code == 200
        assert "warmroute_nonces_missed_total 1" in one.metrics()
    finally:
        redis.thaw()

    def asked() -> bool:
        """Whether the proxy has Redis again: it refuses what the other one has taken."""
        later = Recorded(proxies.folder, chat("later", max_tokens=2))
        return later.send(one).status_code == 200 and refused(later.send(other))

    until(asked, "Redis is asked again")


def test_without_redis_each_proxy_takes_a_token_once(proxies: SharingProxies) -> None:
    one, other = proxies.start(shared=False), proxies.start(shared=False)
    recorded = Recorded(proxies.folder, chat(max_tokens=2))
    assert [recorded.send(proxy).status_code for proxy in (one, other, one, other)] == [200, 200, 401, 401]
