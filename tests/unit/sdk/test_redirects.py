"""A server that redirects a call to another host: that host learns nothing of the session."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import warmroute
from warmroute.contract import headers
from warmroute.contract.identity import SESSION_HEADERS

ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}
MESSAGES: Any = [{"role": "user", "content": "hello"}]
OTHERS = [
    "https://elsewhere.test/v1/chat/completions",
    "http://home.test/v1/chat/completions",
    "https://home.test:444/v1",
]
SAME = "https://home.test/v2/chat/completions"


class Hosts:
    """What each request had; the first one is redirected."""

    def __init__(self, leads_to: str) -> None:
        self.leads_to = leads_to
        self.seen: list[httpx.Headers] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request.headers.copy())
        if len(self.seen) == 1:
            return httpx.Response(307, headers={"location": self.leads_to})
        return httpx.Response(200, json=ANSWER)

    async def answer_async(self, request: httpx.Request) -> httpx.Response:
        return self.answer(request)


def by_client(hosts: Hosts) -> None:
    http = httpx.Client(transport=httpx.MockTransport(hosts.answer), follow_redirects=True)
    client = warmroute.OpenAI(base_url="https://home.test/v1", api_key="k", session="secret-task", http_client=http)
    client.chat.completions.create(model="m", messages=MESSAGES)


def by_copy(hosts: Hosts) -> None:
    http = httpx.Client(transport=httpx.MockTransport(hosts.answer), follow_redirects=True)
    client = warmroute.OpenAI(base_url="https://home.test/v1", api_key="k", http_client=http)
    for _ in range(2):
        copied = client.with_options(session="secret-task")
    copied.chat.completions.create(model="m", messages=MESSAGES)
    assert len(http.event_hooks["request"]) == 1


def by_async_client(hosts: Hosts) -> None:
    async def call() -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(hosts.answer_async), follow_redirects=True)
        client = warmroute.AsyncOpenAI(
            base_url="https://home.test/v1", api_key="k", session="secret-task", http_client=http
        )
        await client.chat.completions.create(model="m", messages=MESSAGES)

    asyncio.run(call())


def by_transport(hosts: Hosts) -> None:
    below = warmroute.transport(httpx.MockTransport(hosts.answer), session="secret-task")
    with httpx.Client(transport=below, follow_redirects=True) as client:
        client.post(
            "https://home.test/v1/chat/completions",
            json={"model": "m", "messages": MESSAGES},
            headers={"authorization": "Bearer k"},
        )


WAYS = [by_client, by_copy, by_async_client, by_transport]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leads_to", OTHERS)
def test_another_host_gets_no_session(way: Callable[[Hosts], None], leads_to: str) -> None:
    hosts = Hosts(leads_to)
    way(hosts)
    first, second = hosts.seen
    assert first[headers.AFFINITY] == "secret-task"
    assert "secret-task" not in str(second.raw)
    assert not set(SESSION_HEADERS) & set(second)
    assert not [name for name in second if name.startswith("x-warmroute-")]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_host_gets_it(way: Callable[[Hosts], None]) -> None:
    hosts = Hosts(SAME)
    way(hosts)
    assert [seen[headers.AFFINITY] for seen in hosts.seen] == ["secret-task"] * 2


def test_a_hook_that_chooses_the_host_of_a_call_keeps_its_session() -> None:
    """Where one name stands for several regions, a client's own hook resolves it."""

    def resolve(request: httpx.Request) -> None:
        request.url = request.url.copy_with(host="east.test")

    hosts = Hosts("https://elsewhere.test/v1/chat/completions")
    transport = httpx.MockTransport(hosts.answer)
    http = httpx.Client(transport=transport, follow_redirects=True, event_hooks={"request": [resolve]})
    client = warmroute.OpenAI(base_url="https://name.test/v1", api_key="k", session="task", http_client=http)
    client.chat.completions.create(model="m", messages=MESSAGES)
    assert headers.AFFINITY in hosts.seen[0]
