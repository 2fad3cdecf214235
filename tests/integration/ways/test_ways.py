"""The ways in besides `OpenAI`: wrapped clients and the transport, against a server of every dialect.

Each is asked the same: the report is right, the session goes out, a break is found, and repair reaches the wire.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

import warmroute
from tests.machine import seconds

from .server import CACHED_TOKENS, COMPLETION_TOKENS, PROMPT_TOKENS, Vendor, serving

pytestmark = pytest.mark.full

TOOLS = [{"name": name, "description": "looks", "input_schema": {"type": "object"}} for name in ("look", "move")]
FUNCTIONS = [{"type": "function", "name": tool["name"], "parameters": tool["input_schema"]} for tool in TOOLS]
CHAT_TOOLS = [{"type": "function", "function": {"name": tool["name"], "parameters": {}}} for tool in TOOLS]
ASK = [{"role": "user", "content": "hello"}]


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with serving() as made:
        yield made


def order(tools: list[Any], swapped: bool) -> list[Any]:
    return tools[::-1] if swapped else tools


def anthropic_call(client: Any, streamed: bool, swapped: bool) -> Any:
    return client.messages.create(
        model="claude-sonnet-4-5", max_tokens=9, messages=ASK, tools=order(TOOLS, swapped), stream=streamed
    )


def chat_call(client: Any, streamed: bool, swapped: bool) -> Any:
    return client.chat.completions.create(model="m", messages=ASK, tools=order(CHAT_TOOLS, swapped), stream=streamed)


def responses_call(client: Any, streamed: bool, swapped: bool) -> Any:
    return client.responses.create(model="m", input="hello", tools=order(FUNCTIONS, swapped), stream=streamed)


class Runs:
    """Runs calls of both kinds of clients to their ends, and closes the clients."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._clients: list[Any] = []

    def made(self, name: str, url: str) -> Any:
        """A client of a library."""
        client = MAKERS[name][0](url)
        self._clients.append(client)
        return client

    def finished(self, answer: Any) -> None:
        """Read an answer to its end."""
        if hasattr(answer, "__await__"):
            self._runner.run(read(answer))
        elif hasattr(answer, "__next__"):
            list(answer)

    def kept_warm(self, cache: Any, **options: Any) -> Any:
        """A session that was kept warm until that ended by itself."""

        async def kept_by_task() -> Any:
            kept = cache.keep_warm("s", **options)
            await asyncio.wait_for(kept.wait(), seconds(20))
            return kept

        if isinstance(cache, warmroute.AsyncCache):
            return self._runner.run(kept_by_task())
        kept = cache.keep_warm("s", **options)
        assert kept.wait(seconds(20))
        return kept

    def close(self) -> None:
        """Close all clients."""
        for client in self._clients:
            self.finished(client.close())
        self._runner.close()


async def read(answer: Any) -> None:
    found = await answer
    if hasattr(found, "__aiter__"):
        async for _ in found:
            pass


@pytest.fixture
def runs() -> Iterator[Runs]:
    made = Runs()
    yield made
    made.close()


Make = Callable[[str], Any]
MAKERS: dict[str, tuple[Make, Callable[..., Any]]] = {
    "openai chat": (lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="k"), chat_call),
    "openai responses": (lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="k"), responses_call),
    "anthropic": (lambda url: anthropic.Anthropic(base_url=url, api_key="k"), anthropic_call),
    "async openai responses": (lambda url: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k"), responses_call),
    "async anthropic": (lambda url: anthropic.AsyncAnthropic(base_url=url, api_key="k"), anthropic_call),
}
CASES = pytest.mark.parametrize("name", MAKERS)
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])


def expect_report(report: Any, turns: int) -> None:
    expect_sums(report, turns)
    assert report.internal_errors == 0


def expect_sums(report: Any, turns: int) -> None:
    assert (report.turns, report.turns_measured) == (turns, turns)
    assert report.prompt_tokens == turns * PROMPT_TOKENS
    assert report.cached_tokens == turns * CACHED_TOKENS
    assert report.completion_tokens == turns * COMPLETION_TOKENS


@CASES
@STREAMED
def test_a_wrapped_client_is_of_its_type_and_reports(vendor: Vendor, runs: Runs, name: str, streamed: bool) -> None:
    call = MAKERS[name][1]
    plain = runs.made(name, vendor.url)
    client = warmroute.wrap(plain, session="s", repair=["sort-tools"])
    assert isinstance(client, type(plain))
    assert warmroute.wrap(client) is client
    for swapped in (False, True):
        runs.finished(call(client, streamed, swapped))
    expect_report(warmroute.cache_of(client).report(), 2)
    assert vendor.last[1]["x-session-affinity"] == "s"
    assert warmroute.cache_of(client).guard.repairs == {"sort-tools": 1}
    assert vendor.seen[0][2]["tools"] == vendor.seen[1][2]["tools"]
    runs.finished(call(plain, streamed, True))
    assert "x-session-affinity" not in vendor.last[1]
    expect_report(warmroute.cache_of(client).report(), 2)
    runs.finished(call(client.with_options(session="of the copy"), streamed, True))
    assert vendor.last[1]["x-session-affinity"] == "of the copy"
    same: list[dict[str, Any]] = [{"session": "s"}, {"repair": ()}, {"repair": "sort-tools"}, {"backend": "warmroute"}]
    assert all(warmroute.wrap(client, **options) is client for options in same)
    others: list[dict[str, Any]] = [{"session": "other"}, {"guard": "off"}, {"repair": "safe"}, {"backend": "openai"}]
    for options in others:
        with pytest.raises(ValueError, match="wrapped already, with other options"):
            warmroute.wrap(client, **options)


@CASES
def test_a_wrapped_client_raises_before_it_sends(vendor: Vendor, runs: Runs, name: str) -> None:
    call = MAKERS[name][1]
    client = warmroute.wrap(runs.made(name, vendor.url), session="s", guard="raise")
    runs.finished(call(client, False, False))
    with pytest.raises(warmroute.PrefixBroken, match="tool-order"):
        runs.finished(call(client.with_options(max_retries=0), False, True))
    assert len(vendor.seen) == 1


def test_a_resource_that_was_used_before_belongs_to_the_wrapped_client_too(vendor: Vendor, runs: Runs) -> None:
    plain = runs.made("openai chat", vendor.url)
    chat_call(plain, False, False)
    client = warmroute.wrap(plain, session="s")
    chat_call(client, False, False)
    assert vendor.last[1]["x-session-affinity"] == "s"


def test_a_client_of_no_known_library_is_refused() -> None:
    with pytest.raises(TypeError, match="and not dict; give the http client below it transport="):
        warmroute.wrap({})
    with pytest.raises(TypeError, match="is not wrapped"):
        warmroute.cache_of({})


AHEAD: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "openai chat": ({"model": "gpt-5.1", "messages": ASK, "tools": CHAT_TOOLS}, {"max_tokens": 1}),
    "openai responses": (
        {"model": "gpt-5.1", "input": "hello", "instructions": "Be brief.", "tools": FUNCTIONS},
        {"max_output_tokens": 16},
    ),
    "anthropic": (
        {"model": "claude-sonnet-4-5", "messages": ASK, "system": "Be brief.", "tools": TOOLS},
        {"max_tokens": 1},
    ),
}
"""What is computed ahead, and what limits its answer."""
AHEAD |= {f"async {name}": AHEAD[name] for name in ("openai responses", "anthropic")}


@pytest.mark.parametrize("name", AHEAD)
def test_a_prompt_is_computed_ahead_and_counted_apart(vendor: Vendor, runs: Runs, name: str) -> None:
    arguments, limit = AHEAD[name]
    client = warmroute.wrap(runs.made(name, vendor.url), session="s")
    cache: Any = warmroute.cache_of(client)
    runs.finished(cache.warm(**arguments))
    assert vendor.last[2] == {**arguments, **limit}
    assert vendor.last[1]["x-session-affinity"] == "s"
    report = cache.report()
    expect_sums(report.warmed, 1)
    assert (report.turns, dict(report.by_session), report.internal_errors) == (0, {}, 0)


@pytest.mark.parametrize("name", AHEAD)
def test_a_session_is_kept_warm_within_its_budget(vendor: Vendor, runs: Runs, name: str) -> None:
    arguments, limit = AHEAD[name]
    client: Any = warmroute.wrap(runs.made(name, vendor.url), session="s")
    create = (
        client.messages
        if "anthropic" in name
        else client.responses
        if "input" in arguments
        else client.chat.completions
    )
    runs.finished(create.create(**arguments, **({"max_tokens": 50} if "anthropic" in name else {})))
    max_usd = 0.007  # one ping, uncached: 0.00624 USD of Anthropic's, whose writes for an hour cost twice, else 0.00141
    kept = runs.kept_warm(warmroute.cache_of(client), max_usd=max_usd, interval_s=0.005)
    assert kept.stopped_because == "the next ping could exceed its budget"
    assert kept.pings == len(vendor.seen) - 1 >= 2
    assert 0 < kept.spent_nanousd <= max_usd * 1e9
    assert all(body == {**arguments, **limit} for _, _, body in vendor.seen[1:])
    expect_sums(warmroute.cache_of(client).report().warmed, kept.pings)


def test_what_a_client_has_no_method_for_is_refused(vendor: Vendor, runs: Runs) -> None:
    cache: Any = warmroute.cache_of(warmroute.wrap(runs.made("anthropic", vendor.url), session="s"))
    with pytest.raises(TypeError, match="no method that takes input="):
        cache.warm(model="m", input="hello")
    with pytest.raises(ValueError, match="needs messages, or input="):
        cache.warm(model="m")


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": ASK, "tools": CHAT_TOOLS}),
    "messages": ("/v1/messages", {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": ASK, "tools": TOOLS}),
    "responses": ("/v1/responses", {"model": "m", "input": "hello", "tools": FUNCTIONS}),
    "gemini": (
        "/v1beta/models/gemini-2.5-pro:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "hello"}]}], "tools": TOOLS},
    ),
}


def post(library: Any, is_async: bool, transport: Any, url: str, body: dict[str, Any]) -> Any:
    async def posted() -> Any:
        async with library.AsyncClient(transport=transport) as client:
            return await client.post(url, json=body)

    if is_async:
        return asyncio.run(posted())
    with library.Client(transport=transport) as client:
        return client.post(url, json=body)


@pytest.mark.parametrize(
    ("library", "is_async", "dialect"),
    [
        *[pytest.param(httpx, False, dialect, id=f"httpx {dialect}") for dialect in BODIES],
        pytest.param(httpx, True, "messages", id="httpx async"),
        pytest.param(httpx2, False, "messages", id="httpx2"),
        pytest.param(httpx2, True, "messages", id="httpx2 async"),
    ],
)
@STREAMED
def test_the_transport_reads_along(vendor: Vendor, library: Any, is_async: bool, dialect: str, streamed: bool) -> None:
    transport = warmroute.transport(session="s", repair=["sort-tools"])
    path, body = BODIES[dialect]
    if streamed:
        path = path.replace(":generate", ":streamGenerate") + ("?alt=sse" if dialect == "gemini" else "")
        body = body if dialect == "gemini" else {**body, "stream": True}
    vendor.gzips = True
    for tools in (body["tools"], body["tools"][::-1]):
        answer = post(library, is_async, transport, vendor.url + path, {**body, "tools": tools})
        assert answer.status_code == 200
        assert b"look" in answer.content
        assert vendor.last[2] == body
    assert vendor.last[1]["x-session-affinity"] == "s"
    assert vendor.last[1]["accept-encoding"] == "gzip, deflate"
    assert "idempotency-key" not in vendor.last[1], "the library could not repeat it"
    expect_report(transport.cache.report(), 2)
    assert transport.cache.guard.repairs == {"sort-tools": 1}


@pytest.mark.parametrize("ending", ["left", "left at once", "error"])
def test_a_session_is_kept_warm_after_a_stream_that_was_not_read_to_its_end(
    vendor: Vendor, runs: Runs, ending: str
) -> None:
    client = warmroute.wrap(runs.made("anthropic", vendor.url), session="s")
    asked = [*ASK, {"role": "assistant", "content": "hi"}, *ASK]
    create = partial(client.messages.create, model="claude-sonnet-4-5", max_tokens=9)
    create(messages=ASK)
    vendor.breaks = ending == "error"
    stream = create(messages=asked, stream=True)
    if ending == "error":
        with pytest.raises(anthropic.APIStatusError):
            list(stream)
    elif ending == "left":
        next(stream)
    stream.close()
    ping = warmroute.cache_of(client).books.ping_of("s")
    assert ping is not None
    assert ping.arguments.get("messages") == (ASK if ending == "left at once" else asked)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_transport_below_may_have_a_stream_class_of_its_own(library: Any, is_async: bool) -> None:
    class Stream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield b'{"usage": {"prompt_tokens": 3}}'

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b'{"usage": {"prompt_tokens": 3}}'

    inner = library.MockTransport(lambda _request: library.Response(200, stream=Stream()))
    transport = warmroute.transport(inner, session="s")
    path, body = BODIES["chat"]
    assert post(library, is_async, transport, f"http://server{path}", body).status_code == 200
    assert transport.cache.report().prompt_tokens == 3


def test_the_transport_takes_requests_of_a_subclass(vendor: Vendor) -> None:
    class Request(httpx.Request):
        pass

    path, body = BODIES["chat"]
    transport = warmroute.transport(session="s")
    with httpx.Client(transport=transport) as client:
        assert client.send(Request("POST", vendor.url + path, json=body)).status_code == 200
    expect_report(transport.cache.report(), 1)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_transport_repeats_a_request_whose_session_field_was_refused(vendor: Vendor, is_async: bool) -> None:
    vendor.refuses = "prompt_cache_key"
    transport = warmroute.transport(session="s", backend="openai")
    path, body = BODIES["chat"]
    for _ in range(2):
        assert post(httpx, is_async, transport, vendor.url + path, body).status_code == 200
    assert ["prompt_cache_key" in sent for _, _, sent in vendor.seen] == [True, False, False]
    expect_report(transport.cache.report(), 2)


def test_the_transport_leaves_other_requests_alone(vendor: Vendor) -> None:
    transport = warmroute.transport(session="s")
    with httpx.Client(transport=transport) as client:
        for content in (b"[1]", b"no json", b"\xff"):
            with pytest.raises(httpx.RemoteProtocolError):
                client.post(f"{vendor.url}/v1/embeddings", content=content)
    assert transport.cache.report().turns == 0


def test_a_request_that_is_no_json_goes_out_as_it_is(vendor: Vendor) -> None:
    transport = warmroute.transport(session="s")
    with httpx.Client(transport=transport) as client, pytest.raises(httpx.RemoteProtocolError):
        client.post(f"{vendor.url}/v1/chat/completions", content=b"{broken")
    assert transport.cache.report().internal_errors == 1
