"""Requests at once and keyed requests over two proxies and one Redis; limits of keys, with it and without."""

import asyncio
import hashlib
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, answer, chat, until
from tests.subjects.stores import Redis
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.core.queue.slots import Held, SlotLimit
from warmroute_proxy.server.base.secrets import config_key_id
from warmroute_proxy.server.redis.call_markers import Marker
from warmroute_proxy.server.redis.calls import PROBE, PROBE_KEY, RedisAway, RedisCalls
from warmroute_proxy.server.redis.limits import RedisSlots
from warmroute_proxy.server.redis.markers import CLAIM, RedisMarkers

from .conftest import FAULTS, SharingProxies

AT_ONCE = '[[budget]]\nname = "team"\ntenants = ["first", "second"]\nrequests_at_once = 2\n'
FOUR = SlotLimit(Scope("team", ("first",)), 4, 0.8)
LONG = chat("long", stream=True, metadata={"script": json.dumps({"output_tokens": 20_000})})


def admission(proxy: ProxyProcess) -> dict[str, Any]:
    with proxy.admin() as admin:
        found: dict[str, Any] = admin.get("/admin/admission").json()
    return found


def keyed(proxy: ProxyProcess, key: str, text: str = "hello") -> httpx.Response:
    with proxy.client() as client:
        body = chat(text, max_tokens=2)
        return client.post("/v1/chat/completions", json=body, headers={"idempotency-key": key})


def code(found: httpx.Response) -> tuple[int, str]:
    return found.status_code, found.json()["error"]["code"]


# -- requests at once


@pytest.fixture
async def slots_of(redis: Redis) -> AsyncIterator[Callable[..., RedisSlots]]:
    calls = RedisCalls(redis.url, seconds(5.0))
    yield lambda holder, lease_s=60.0: RedisSlots(calls, holder, lease_s)
    await calls.close()


async def test_places_are_given_once_and_come_back(slots_of: Callable[..., RedisSlots]) -> None:
    one, other = slots_of("a"), slots_of("b")
    assert await one.hold(FOUR, 1, 3) == Held(3, 1)
    assert await one.hold(FOUR, 1, 3) == Held(3, 1)  # asked again: nothing is counted twice
    assert await other.hold(FOUR, 0, 1) == Held(1, 0)
    assert await one.hold(FOUR, 0, 0) == Held(0, 3)


async def test_processes_that_want_more_than_there_is_get_the_same(slots_of: Callable[..., RedisSlots]) -> None:
    one, other = slots_of("a"), slots_of("b")
    assert await one.hold(FOUR, 4, 4) == Held(4, 0)
    assert await other.hold(FOUR, 0, 9) == Held(0, 0)
    assert await one.hold(FOUR, 4, 9) == Held(2, 0)  # it may begin none until two have ended
    assert await other.hold(FOUR, 0, 9) == Held(0, 0)
    assert await one.hold(FOUR, 2, 9) == Held(2, 2)
    assert await other.hold(FOUR, 0, 9) == Held(2, 0)


async def test_what_a_process_held_is_free_after_its_time(slots_of: Callable[..., RedisSlots]) -> None:
    one, other = slots_of("a", 0.2), slots_of("b")
    assert await one.hold(FOUR, 4, 4) == Held(4, 0)
    async with asyncio.timeout(seconds(10)):
        while await other.hold(FOUR, 0, 2) != Held(2, 2):
            await asyncio.sleep(0.05)


def test_requests_at_once_hold_over_two_proxies(proxies: SharingProxies) -> None:
    one, other = proxies.start(f"\n{AT_ONCE}"), proxies.start(f"\n{AT_ONCE}")
    assert keyed(other, "first").status_code == 200  # so that it knows what is left
    running = [one.send(LONG), one.send(LONG, tenant=1)]
    until(lambda: admission(other)["at_once"][0]["left"] == 0, "the other proxy knows of both")
    waiting = other.send(chat(max_tokens=2))
    until(lambda: admission(other)["queue"]["requests"] == 1, "it waits")
    assert admission(one)["at_once"][0]["running"] == 2
    running.pop().close()
    with waiting, running.pop():
        assert answer(waiting)[0] == 200


def test_a_killed_proxy_gives_back_its_places_and_its_keys(proxies: SharingProxies) -> None:
    one, other = proxies.start(f"\n{AT_ONCE}"), proxies.start(f"\n{AT_ONCE}")
    assert keyed(other, "first").status_code == 200
    running = [one.send(LONG, headers={"idempotency-key": "again"}), one.send(LONG)]
    until(lambda: admission(other)["at_once"][0]["left"] == 0, "the other proxy knows of both")
    with other.send(LONG, headers={"idempotency-key": "again"}) as sock:
        status, headers, text = answer(sock)
    assert (status, json.loads(text)["error"]["code"]) == (409, "idempotency_key_running")
    assert headers["retry-after"] == "1"
    one.kill()
    again = until(lambda: begun(other, "again"), "the key can be tried again, and has a place")
    for sock in (*running, again):
        sock.close()


def begun(proxy: ProxyProcess, key: str) -> socket.socket | None:
    """A long request whose answer has begun; None where it is refused."""
    sock = proxy.send(LONG, headers={"idempotency-key": key})
    if sock.recv(16).startswith(b"HTTP/1.1 200"):
        return sock
    sock.close()
    return None


# -- the server's version and rights

MANY_PROXIES: Final = Path(__file__).parents[2] / "docs" / "how-to" / "many-proxies.md"


async def test_the_probe_finds_each_command_that_an_acl_lacks(redis: Redis) -> None:
    listed = re.search(r"these commands: (.*?)\.", MANY_PROXIES.read_text(), re.DOTALL)
    assert listed is not None
    commands = re.findall("[A-Z]+", listed[1].replace("EVALSHA", ""))
    for lacking in ("", *commands):
        rights = " ".join(f"+{each}" for each in commands if each != lacking)
        redis.tell("FLUSHALL", f"ACL SETUSER proxy reset on nopass ~warmroute:* {rights}")
        calls = RedisCalls(redis.url.replace("//", "//proxy:any@"), seconds(5.0))
        try:
            await calls.run(PROBE, (PROBE_KEY,))
            found = ""
        except RedisAway as error:
            found = str(error)
        finally:
            await calls.close()
        assert ("permission" in found.lower() or "can't run" in found) is bool(lacking), (lacking, found)


def test_a_claim_uses_no_option_that_redis_has_only_since_version_7() -> None:
    assert not re.search("'NX', *'GET'", CLAIM)


# -- keyed requests


async def test_a_marker_goes_through_its_states(redis: Redis) -> None:
    calls = RedisCalls(redis.url, seconds(5.0))
    one, other = RedisMarkers(calls, "aa", "east"), RedisMarkers(calls, "bb", "west")
    try:
        assert await one.claim("k", "f1", 60.0) is None
        assert await other.claim("k", "f1", 60.0) == Marker("f1", "east", "")
        one.dropped("k", "f1")
        async with asyncio.timeout(seconds(10)):
            while await other.claim("k", "f2", 60.0) is not None:
                await asyncio.sleep(0.01)
        other.ended("k", "f2", "wr-1", 60.0)
        async with asyncio.timeout(seconds(10)):
            while await one.claim("k", "f2", 60.0) != Marker("f2", "west", "wr-1"):
                await asyncio.sleep(0.01)
    finally:
        await calls.close()


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "dropped"])
async def test_what_a_frozen_redis_was_told_of_a_marker_is_told_again(redis: Redis, ends: bool) -> None:
    calls, others = RedisCalls(redis.url, 0.25), RedisCalls(redis.url, seconds(5.0))
    one, other = RedisMarkers(calls, "aa", "east"), RedisMarkers(others, "bb", "west")
    try:
        assert await one.claim("before", "f", 60.0) is None  # there is a connection
        redis.freeze()
        with pytest.raises(RedisAway):
            await one.claim("k", "f", 60.0)  # Redis notes it when it goes on
        if ends:
            one.ended("k", "f", "wr-1", 60.0)
        else:
            one.dropped("k", "f")
        await asyncio.sleep(0)  # it is begun, and fails at once
        redis.thaw()
        expected = Marker("f", "east", "wr-1") if ends else None
        async with asyncio.timeout(seconds(10)):
            while await other.claim("k", "f", 60.0) == Marker("f", "east", ""):
                one.sweep()
                await asyncio.sleep(0.01)
        assert await other.claim("k", "f", 60.0) == expected
    finally:
        redis.thaw()
        await calls.close()
        await others.close()


def test_a_key_is_served_by_one_of_two_proxies(proxies: SharingProxies) -> None:
    one, other = proxies.start(), proxies.start()
    first = keyed(one, "key")
    receipt_id = first.json()["usage"]["warmroute"]["id"]
    assert keyed(one, "key").json() == first.json()
    spent = until(lambda: spent_at(other, receipt_id), "the other proxy knows of the end")
    assert spent.headers["x-should-retry"] == "false"
    assert receipt_id in spent.json()["error"]["message"]
    assert code(keyed(other, "key", "another body")) == (422, "idempotency_key_reused")
    assert keyed(other, "another key").status_code == 200
    assert 'warmroute_marker_refusals_total{code="idempotency_key_spent"} 1' in other.metrics()


def spent_at(proxy: ProxyProcess, receipt_id: str) -> httpx.Response | None:
    found = keyed(proxy, "key")
    if code(found) == (409, "idempotency_key_running"):
        return None
    assert code(found) == (409, "idempotency_key_spent")
    assert found.headers["x-warmroute-receipt"] == receipt_id
    return found


def test_what_was_charged_nothing_can_be_tried_at_another_proxy(proxies: SharingProxies) -> None:
    one, other = proxies.start("requests_per_minute = 1"), proxies.start("requests_per_minute = 1")
    headers = {"idempotency-key": "key"}
    with one.client(1) as client:
        statuses = [
            client.post("/v1/chat/completions", json=chat(max_tokens=2), headers={"idempotency-key": each}).status_code
            for each in ("before", "key")
        ]
    assert statuses == [200, 429]
    with other.client(1) as client:
        found = until(
            lambda: client.post("/v1/chat/completions", json=chat(max_tokens=2), headers=headers).status_code != 409,
            "the marker is gone",
        )
    assert found


@pytest.mark.parametrize(("fault", "end"), FAULTS)
def test_without_redis_a_keyed_request_goes_on(proxies: SharingProxies, redis: Redis, fault: str, end: str) -> None:
    proxies.timeout_s = 0.25
    one, other = proxies.start(), proxies.start()
    assert keyed(one, "before").status_code == 200
    before = one.metric("warmroute_markers_missed_total ")
    getattr(redis, fault)()
    first = keyed(one, "key")
    assert first.status_code == 200
    assert keyed(one, "key").json() == first.json()  # known to this process
    assert keyed(other, "key").status_code == 200
    assert one.metric("warmroute_markers_missed_total ") - before == 1
    getattr(redis, end)()
    until(lambda: 'store="redis"} 1' in one.metrics(), "redis is used again")
    assert keyed(one, "later").status_code == 200


# -- limits of keys


@pytest.mark.parametrize("shared", [True, False], ids=["redis", "alone"])
def test_a_limit_of_a_key_is_that_of_no_other_key(proxies: SharingProxies, shared: bool) -> None:
    key_id = config_key_id(hashlib.sha256(proxies.keys[0].encode()).hexdigest())
    table = f'\n[[budget]]\nname = "ci"\nkeys = ["{key_id}"]\nrequests_per_minute = 3\nwarn_share = 0.5\n'
    proxy = proxies.start(table, shared=shared)
    with proxy.client() as client:
        found = [client.post("/v1/chat/completions", json=chat(max_tokens=2)) for _ in range(4)]
    assert [each.status_code for each in found] == [200, 200, 200, 429]
    assert found[0].json()["usage"]["warmroute"]["key"] == key_id
    assert "x-warmroute-budget" not in found[0].headers
    assert found[1].headers["x-warmroute-budget"] == "ci; requests_per_minute; 67%"
    assert found[1].headers["x-ratelimit-remaining-requests"] == "1"
    assert code(found[3]) == (429, "rate_limit_exceeded")
    assert "of the budget ci is reached: 0 are left" in found[3].json()["error"]["message"]
    assert 1 <= int(found[3].headers["retry-after"]) <= 60
    with proxy.client(1) as client:
        assert client.post("/v1/chat/completions", json=chat(max_tokens=2)).status_code == 200
    assert 'warmroute_budget_warnings_total{budget="ci",limit="requests_per_minute"}' in proxy.metrics()
