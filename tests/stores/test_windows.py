"""Limits by the minute over two proxies and one Redis, and what holds while that is away."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.proxy.harness import PLAIN, EngineProcess, ProxyProcess, chat, until
from tests.machine import seconds
from tests.subjects.stores import Redis
from warmroute_cli.processes import stop_all
from warmroute_proxy.core.queue.budget import Budget, Span, Taken
from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.stores.redis_windows import RedisWindows
from warmroute_proxy.server.stores.store_state import StoreAway

LIMIT = 12
SPAN = Span(1_790_000_040, 1_790_000_100)
MINUTE = Budget("first", ("first",), "minute", LIMIT, 2.0, "requests")

Start = Callable[[], ProxyProcess]


@pytest.fixture
def start(redis: Redis, tmp_path: Path) -> Iterator[Start]:
    """Starts proxies in front of one engine."""
    engine = EngineProcess(tmp_path, "east-a0", "aggregated").listening()
    made: list[ProxyProcess] = []
    keys = (new_api_key()[0], new_api_key()[0])
    url_file = tmp_path / "redis.url"
    url_file.touch(0o600)
    url_file.write_text(redis.url)

    def begin() -> ProxyProcess:
        of_tenant = f'requests_per_minute = {LIMIT}\n[redis]\nurl_file = "{url_file}"'
        proxy = ProxyProcess(tmp_path / f"p{len(made)}", [engine.toml("east")], keys=keys, second=of_tenant)
        made.append(proxy.start())
        return proxy

    yield begin
    for proxy in made:
        proxy.stop()
    stop_all([engine.child], seconds(5.0))


def send(proxy: ProxyProcess) -> httpx.Response:
    with proxy.client(1) as client:
        return client.post("/v1/chat/completions", json=chat(max_tokens=2))


def in_one_minute(needed_s: float = 15.0) -> None:
    """Wait for the next minute where too little is left of this one."""
    left_s = 60 - time.time() % 60
    if left_s < seconds(needed_s):
        time.sleep(left_s)


def test_two_proxies_answer_the_limit_together(start: Start) -> None:
    one, other = start(), start()
    in_one_minute()
    answers = [send(proxy) for _ in range(LIMIT) for proxy in (one, other)]
    assert [answer.status_code for answer in answers].count(200) == LIMIT
    refused = next(answer for answer in answers if answer.status_code == 429)
    error = refused.json()["error"]
    assert error["code"] == "rate_limit_exceeded"
    assert f"the limit of {LIMIT} requests a minute over all proxies is reached" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_while_redis_is_away_each_proxy_has_the_limit(start: Start, redis: Redis, fault: str) -> None:
    one = start()
    assert send(one).status_code == 200
    if fault == "kill":
        redis.kill()
    else:
        redis.signal(signal.SIGSTOP)
    statuses = [send(one).status_code for _ in range(LIMIT)]
    assert statuses.count(200) >= LIMIT - 1
    ready = httpx.get(f"{one.url}/ready", verify=PLAIN)
    assert ready.status_code == 200
    assert ready.json()["degraded"] == ["redis away: limits by the minute are those of each process"]
    with one.admin() as admin:
        assert 'warmroute_store_up{store="redis"} 0' in admin.get("/metrics").text
    if fault == "kill":
        redis.start()
    else:
        redis.signal(signal.SIGCONT)

    def back() -> bool:
        send(one)
        return "degraded" not in httpx.get(f"{one.url}/ready", verify=PLAIN).json()

    until(back, "the limit is shared again")


async def test_slices_are_never_more_than_the_limit_together(redis: Redis) -> None:
    proxies = [RedisWindows(redis.url) for _ in range(3)]
    try:
        found = await asyncio.gather(*(proxy.take(MINUTE, SPAN, 2) for proxy in proxies * 4))
        assert sum(taken.leased for taken in found) == LIMIT
        assert await proxies[0].take(MINUTE, SPAN, -3) == Taken(0, 3)
        assert await proxies[1].take(MINUTE, SPAN, 5) == Taken(3, 0)
        assert await proxies[1].take(MINUTE, Span(SPAN.ends_s, SPAN.ends_s + 60), 5) == Taken(5, LIMIT - 5)
    finally:
        for proxy in proxies:
            await proxy.close()


async def test_a_frozen_redis_is_away_after_the_deadline(redis: Redis) -> None:
    proxy = RedisWindows(redis.url)
    redis.signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreAway):
            await proxy.take(MINUTE, SPAN, 2)
    finally:
        redis.signal(signal.SIGCONT)
        await proxy.close()
