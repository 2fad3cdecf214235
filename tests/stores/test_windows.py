"""Limits by the minute over two proxies and one Redis, and what holds while that is away."""

import asyncio
import time
from functools import partial

import httpx
import pytest
from redis import Redis as Client

from tests.machine import seconds
from tests.subjects.processes import PLAIN, ProxyProcess, chat, until
from tests.subjects.stores import Redis
from warmroute_proxy.core.queue.budget import Budget, Span, Taken
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.server.redis.calls import RedisCalls
from warmroute_proxy.server.redis.limits import RedisWindows
from warmroute_proxy.server.stores.limits.shared_limits import AWAY

from .conftest import FAULTS, SharingProxies

LIMIT = 12
SPAN = Span(1_790_000_040, 1_790_000_100)
MINUTE = Budget(Scope("first", ("first",)), "minute", LIMIT, 2.0, "requests")

OF_SECOND = f"requests_per_minute = {LIMIT}"


def send(proxy: ProxyProcess) -> httpx.Response:
    with proxy.client(1) as client:
        return client.post("/v1/chat/completions", json=chat(max_tokens=2))


def in_one_minute(needed_s: float = 15.0) -> None:
    """Wait for the next minute where too little is left of this one."""
    left_s = 60 - time.time() % 60
    if left_s < seconds(needed_s):
        time.sleep(left_s)


def is_taken(redis: Redis, requests: int) -> bool:
    """Whether the second tenant's limit has counted so many requests."""
    with Client.from_url(redis.url) as client:
        return sum(int(client.get(key) or 0) for key in client.scan_iter("warmroute:requests:*")) >= requests


def test_two_proxies_answer_the_limit_together(proxies: SharingProxies, redis: Redis) -> None:
    one, other = proxies.start(OF_SECOND), proxies.start(OF_SECOND)
    in_one_minute()
    answers: list[httpx.Response] = []
    for proxy in (one, other) * LIMIT:
        answers.append(send(proxy))
        passed = [answer.status_code for answer in answers].count(200)
        until(partial(is_taken, redis, min(passed, LIMIT)), "Redis knows of it")  # no request waits for that
    assert LIMIT <= passed <= LIMIT + 1  # the other may let one in before it learns that nothing is left
    refused = next(answer for answer in answers if answer.status_code == 429)
    error = refused.json()["error"]
    assert error["code"] == "rate_limit_exceeded"
    assert f"the limit of {LIMIT} requests a minute over all proxies is reached" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60


@pytest.mark.parametrize(("fault", "end"), FAULTS)
def test_while_redis_is_away_each_proxy_has_the_limit(
    proxies: SharingProxies, redis: Redis, fault: str, end: str
) -> None:
    proxies.timeout_s = 0.25
    one = proxies.start(OF_SECOND)
    assert send(one).status_code == 200
    getattr(redis, fault)()
    statuses = [send(one).status_code for _ in range(LIMIT)]
    assert statuses.count(200) >= LIMIT - 1

    def degraded() -> bool:
        ready = httpx.get(f"{one.url}/ready", verify=PLAIN)
        assert ready.status_code == 200
        return bool(ready.json().get("degraded") == [AWAY])

    until(degraded, "redis away")
    assert 'warmroute_store_up{store="redis"} 0' in one.metrics()
    getattr(redis, end)()

    def back() -> bool:
        send(one)
        return "degraded" not in httpx.get(f"{one.url}/ready", verify=PLAIN).json()

    until(back, "the limit is shared again")


async def test_slices_are_never_more_than_the_limit_together(redis: Redis) -> None:
    calls = [RedisCalls(redis.url, seconds(5.0)) for _ in range(3)]
    proxies = [RedisWindows(each) for each in calls]
    try:
        found = await asyncio.gather(*(proxy.take(MINUTE, SPAN, 2) for proxy in proxies * 4))
        assert sum(taken.leased for taken in found) == LIMIT
        assert await proxies[0].take(MINUTE, SPAN, -3) == Taken(0, 3)
        assert await proxies[1].take(MINUTE, SPAN, 5) == Taken(3, 0)
        lower = MINUTE._replace(limit=LIMIT - 4)
        assert await proxies[1].take(lower, SPAN, 5) == Taken(0, -4)  # more is taken than there is now
        assert await proxies[1].take(MINUTE, Span(SPAN.ends_s, SPAN.ends_s + 60), 5) == Taken(5, LIMIT - 5)
    finally:
        for each in calls:
            await each.close()


@pytest.mark.parametrize("denied", ["evalsha", "script"])
async def test_a_user_of_redis_needs_few_commands(redis: Redis, denied: str) -> None:
    redis.tell(f"ACL SETUSER default -@all +eval +evalsha +get +incrby +expire -{denied}")
    calls = RedisCalls(redis.url, seconds(5.0))
    try:
        assert await RedisWindows(calls).take(MINUTE, SPAN, 2) == Taken(2, LIMIT - 2)
        assert await RedisWindows(calls).take(MINUTE, SPAN, 3) == Taken(3, LIMIT - 5)
    finally:
        await calls.close()
