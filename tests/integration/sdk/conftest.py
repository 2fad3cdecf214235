"""A mock of OpenAI-compatible servers on a real socket, and a driver that runs both kinds of clients alike.

It is a mock because the proxy has tests of its own: here the SDK is under test, also against servers that misbehave in
ways that the proxy never would.
"""

import asyncio
import contextvars
import itertools
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from tests.subjects.http_server import QuietServer

import warmroute
from warmroute.contract.money import Rates, list_nanousd, price_nanousd, usd

RATES = Rates.from_usd_per_mtok("0.6", "0.1", "3")
TOKENS_PER_MESSAGE = 100
COMPLETION_TOKENS = 7
SERVERS = itertools.count()
"""Their numbers."""


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class MockServer:
    """What the server plays; tests set the fields. The default is a warmroute proxy."""

    kind: str = "warmroute"
    """`warmroute`, `plain` (no cached tokens), `openai` (cached tokens), `bare` (no usage), `garbage`, or `breaks`
    (an error in the midst of a stream)."""
    refuses_stream_options: int = 0
    """The status with which `stream_options` is refused; 0 accepts it."""
    refuses_field: str = ""
    """A field of the body that is refused with 400, by its name."""
    fails_with: int = 0
    """The status of all answers, 0 for none."""
    home: str = "east"
    receipt_id: str = ""
    """The id of every receipt, as for retries under one key; empty: each answer has its own."""
    tamper: Callable[[dict[str, Any]], None] | None = None
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Of receipts; taken by several threads."""

    @property
    def posts(self) -> list[Seen]:
        return [request for request in self.seen if request.method == "POST"]

    @property
    def last(self) -> Seen:
        return self.seen[-1]

    def usage(self, request: Seen, receipt_id: str) -> dict[str, Any] | None:
        """Usage of a turn: each message is 100 tokens, and what the session sent before is cached."""
        if self.kind == "bare":
            return None
        prompt = TOKENS_PER_MESSAGE * len(request.body.get("messages") or ["prompt"])
        session = request.headers.get("x-session-affinity", "")
        with self.lock:
            cached = min(self.prompts.get(session, 0), prompt)
            self.prompts[session] = prompt
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": COMPLETION_TOKENS,
            "total_tokens": prompt + COMPLETION_TOKENS,
        }
        if self.kind == "plain":
            return usage
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if self.kind == "warmroute":
            listed = list_nanousd(RATES, prompt, COMPLETION_TOKENS)
            price = price_nanousd(RATES, prompt, cached, COMPLETION_TOKENS)
            usage["cost"] = float(usd(price))
            usage["warmroute"] = {
                "v": 1,
                "id": receipt_id,
                "session": "0" * 16,
                "turn": 1,
                "region": self.home,
                "workers": [{"id": "east-a0", "dp_rank": 0, "role": "aggregated"}],
                "cached": {"device": cached, "host": 0, "storage": 0},
                "predicted_cached": cached,
                "loss": {"cold" if cached == 0 else "new": prompt - cached} if prompt > cached else {},
                "rates_usd_per_mtok": RATES.as_usd_per_mtok(),
                "list_nanousd": listed,
                "price_nanousd": price,
                "saved_nanousd": listed - price,
                "estimated": [],
            }
        if self.tamper is not None:
            self.tamper(usage)
        return usage


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    mock: MockServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._saw({})
        if self.path.endswith("/models"):
            self._json(200, {"object": "list", "data": []})
            return
        usage = self.mock.receipts.get(self.path.rpartition("/")[2])
        if usage is None:
            self._json(404, {"error": {"message": "no such receipt"}})
        elif not usage:
            self._json(202, {"state": "open"})
        else:
            self._json(200, {"object": "warmroute.receipt", "state": "settled", "usage": usage})

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        request = self._saw(json.loads(self.rfile.read(length) or b"{}"))
        mock = self.mock
        status = mock.fails_with or (mock.refuses_stream_options if "stream_options" in request.body else 0)
        if status:
            self._json(status, {"error": {"message": "Extra inputs are not permitted"}})
        elif mock.refuses_field in request.body:
            self._json(400, {"error": {"message": f"Unrecognized request argument supplied: {mock.refuses_field}"}})
        elif mock.kind == "garbage":
            self._garbage(request)
        elif request.path.endswith("/sessions/expect"):
            self.send_response(204)
            self.end_headers()
        elif not request.path.endswith("/completions"):
            vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            self._json(200, {"object": "list", "model": "m", "data": [vector], "usage": usage})
        else:
            self._complete(request)

    def _complete(self, request: Seen) -> None:
        mock = self.mock
        receipt_id = mock.receipt_id or f"wr-{next(mock.numbers):024x}"
        usage = mock.usage(request, receipt_id)
        head = {}
        if mock.kind == "warmroute":
            head = {"x-warmroute-receipt": receipt_id, "x-warmroute-home": mock.home}
            mock.receipts[receipt_id] = usage or {}
        if request.body.get("stream"):
            asked = (request.body.get("stream_options") or {}).get("include_usage")
            chunks = list(_chunks(request, usage if asked else None))
            broken = [*chunks[:1], {"error": {"message": "the engine is gone"}}]
            self._events(broken if mock.kind == "breaks" else chunks, head)
        else:
            self._json(200, _answer(request, usage), head)

    def _garbage(self, request: Seen) -> None:
        """Valid enough for openai's client, wrong in everything that the SDK looks at."""
        usage = {"prompt_tokens": -5, "prompt_tokens_details": "none", "warmroute": {"loss": ["a"], "cached": 3}}
        head = {"x-warmroute-home": "\tcaf\u00e9", "x-warmroute-receipt": "x" * 500}
        if request.body.get("stream"):
            self._events([{"id": "c", "choices": "none", "usage": [1]}, *_chunks(request, usage)], head)
        else:
            self._json(200, _answer(request, usage), head)

    def _saw(self, body: dict[str, Any]) -> Seen:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Seen(self.command, self.path, headers, body)
        self.mock.seen.append(request)
        return request

    def _json(self, status: int, body: object, head: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self._head(status, {"content-type": "application/json", "content-length": str(len(content)), **(head or {})})
        self.wfile.write(content)

    def _events(self, chunks: list[dict[str, Any]], head: dict[str, str]) -> None:
        self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked", **head})
        for line in (*(json.dumps(chunk) for chunk in chunks), "[DONE]"):
            event = f"data: {line}\n\n".encode()
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, status: int, head: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.end_headers()


def _answer(request: Seen, usage: dict[str, Any] | None) -> dict[str, Any]:
    chat = request.path.endswith("/chat/completions")
    words = '{"word": "hello"}' if request.body.get("response_format") else "hello"
    said: dict[str, Any] = {"message": {"role": "assistant", "content": words}} if chat else {"text": words}
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, **said}
    kind = "chat.completion" if chat else "text_completion"
    answer: dict[str, Any] = {"id": "c-1", "object": kind, "created": 1, "model": "m", "choices": [choice]}
    return answer if usage is None else {**answer, "usage": usage}


def _chunks(request: Seen, usage: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    chat = request.path.endswith("/chat/completions")
    base: dict[str, Any] = {"id": "c-1", "object": "chat.completion.chunk" if chat else "text_completion"}
    base |= {"created": 1, "model": "m"}
    for index, word in enumerate(("hel", "lo")):
        said: dict[str, Any] = {"delta": {"role": "assistant", "content": word}} if chat else {"text": word}
        yield {**base, "choices": [{"index": 0, "finish_reason": "stop" if index else None, **said}]}
    if usage is not None:
        yield {**base, "choices": [], "usage": usage}


class Driver:
    """Runs the calls of one kind of client, `sync` or `async`, to their results."""

    def __init__(self, kind: str, server: MockServer) -> None:
        self.kind = kind
        self.server = server
        self._runner = asyncio.Runner() if kind == "async" else None
        self._clients: list[Any] = []

    def client(self, **options: Any) -> Any:
        make = warmroute.OpenAI if self._runner is None else warmroute.AsyncOpenAI
        client = make(**{"base_url": self.server.url, "api_key": "wr-test", "max_retries": 0, **options})
        self._clients.append(client)
        return client

    def run(self, result: Any) -> Any:
        return self._in_loop(_awaited(result)) if self._runner is not None else result

    def read(self, stream: Any) -> list[Any]:
        return list(stream) if self._runner is None else self._in_loop(_collected(stream))

    def enter(self, context: Any) -> Any:
        return context.__enter__() if self._runner is None else self._in_loop(context.__aenter__())

    def leave(self, context: Any) -> None:
        if self._runner is None:
            context.__exit__(None, None, None)
        else:
            self._in_loop(context.__aexit__(None, None, None))

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs `work` in the caller's context, so that it is inside of the caller's `with warmroute.session()`."""
        assert self._runner is not None
        return self._runner.run(work, context=contextvars.copy_context())

    def close(self) -> None:
        for client in self._clients:
            self.run(client.close())
        if self._runner is not None:
            self._runner.close()


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


async def _collected(stream: Any) -> list[Any]:
    return [item async for item in stream]


@pytest.fixture
def server() -> Iterator[MockServer]:
    """A server on a port of its own."""
    mock = MockServer()
    http = QuietServer(("127.0.0.1", 0), type("Bound", (Handler,), {"mock": mock}))
    # With a path of its own, so that what the process learns about a server's address stays with this one.
    mock.url = f"http://127.0.0.1:{http.server_port}/{next(SERVERS)}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield mock
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest, server: MockServer) -> Iterator[Driver]:
    """Both kinds of clients in turn."""
    driver = Driver(request.param, server)
    yield driver
    driver.close()
