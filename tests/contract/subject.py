"""What the contract is tested on: an engine with an address, and the few ways in which the tests talk to it."""

import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from tests.machine import seconds

Json = dict[str, Any]
Kind = Literal["embedded", "sglang"]

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
GENERATE = "/generate"

DEADLINE_S = 30.0
"""For what takes an idle machine a second or less."""


@dataclass(frozen=True)
class Subject:
    """An engine under test. It is shared: a test uses prompts and request ids that no other does."""

    kind: Kind
    url: str
    client: httpx.Client = field(repr=False)
    connections: list[socket.socket] = field(default_factory=list, repr=False)
    """What `send` has opened."""

    # --- requests ------------------------------------------------------------------------------------------------

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        """Post a JSON body."""
        return self.client.post(path, json=body, **more)

    def get(self, path: str) -> httpx.Response:
        """Get a path."""
        return self.client.get(path)

    def answer(self, path: str, body: Json) -> Any:
        """The JSON of an answer that must be a 200."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def events(self, path: str, body: Json) -> list[Json]:
        """The events of a stream, without the `[DONE]` that must end it."""
        with self.open(path, body) as lines:
            return events(lines)

    @contextlib.contextmanager
    def open(self, path: str, body: Json) -> Iterator[Iterator[str]]:
        """The lines of a stream whose head has come."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            yield (line for line in response.iter_lines() if line)

    def later(self, path: str, body: Json) -> "Future[httpx.Response]":
        """Post from a thread of its own."""
        return in_thread(lambda: httpx.post(self.url + path, json=body, timeout=seconds(DEADLINE_S)))

    def send(self, path: str, body: Json) -> socket.socket:
        """Send a request over a connection of its own, which may be closed at any moment and is at the test's end."""
        parts = urlsplit(self.url)
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection = socket.create_connection((parts.hostname, parts.port), timeout=seconds(DEADLINE_S))
        self.connections.append(connection)
        connection.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        return connection

    # --- state ---------------------------------------------------------------------------------------------------

    def load(self) -> Json:
        """The row of the only rank in `/v1/loads`."""
        (row,) = self.get("/v1/loads").json()["loads"]
        return dict(row)

    def live(self) -> tuple[int, int]:
        """How many requests run and wait."""
        row = self.load()
        return row["num_running_reqs"], row["num_waiting_reqs"]

    def until_live(self, running: int, waiting: int = 0) -> None:
        """Wait until so many run and wait."""
        until(lambda: self.live() == (running, waiting), lambda: f"{self.live()} run and wait")

    def abort(self, rid: str) -> None:
        """Abort by request id."""
        assert self.post("/abort_request", {"rid": rid}).status_code == 200

    def abort_all(self) -> None:
        """Abort everything and wait for it."""
        assert self.post("/abort_request", {"abort_all": True}).status_code == 200
        self.until_live(0)

    def facts(self) -> Json:
        """`/server_info`."""
        return dict(self.get("/server_info").json())


def in_thread(ask: Callable[[], httpx.Response]) -> Future[httpx.Response]:
    """Ask from a thread of its own."""
    future: Future[httpx.Response] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def events(lines: Iterator[str]) -> list[Json]:
    """The events of the rest of a stream, without its `[DONE]`."""
    *data, last = [line.removeprefix("data: ") for line in lines]
    assert last == "[DONE]"
    return [json.loads(item) for item in data]


def until(condition: Callable[[], object], what: Callable[[], str]) -> None:
    """Poll until the condition holds."""
    deadline_s = time.monotonic() + seconds(DEADLINE_S)
    while not condition():
        assert time.monotonic() < deadline_s, f"still: {what()}"
        time.sleep(0.05)


def unique(prefix: str = "rid") -> str:
    """A name that nobody else uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def chat(content: str, **more: Any) -> Json:
    """A chat request of few tokens, the same each time."""
    message = {"role": "user", "content": content}
    return {"model": "any", "messages": [message], "max_tokens": 4, "temperature": 0, **more}


def completion(prompt: Any, **more: Any) -> Json:
    """A completion request of few tokens, the same each time."""
    return {"model": "any", "prompt": prompt, "max_tokens": 4, "temperature": 0, **more}


def generate(text: Any, **more: Any) -> Json:
    """A `/generate` request of few tokens, the same each time. What it does not know of `more` is for sampling."""
    top = {"rid", "stream", "cache_salt", "extra_key", "return_logprob", "top_logprobs_num"}
    sampling = {name: value for name, value in more.items() if name not in top}
    rest = {name: value for name, value in more.items() if name in top}
    return {"text": text, "sampling_params": {"max_new_tokens": 4, "temperature": 0, **sampling}, **rest}


MAKE: dict[str, Callable[..., Json]] = {CHAT: chat, COMPLETION: completion, GENERATE: generate}
"""A request of few tokens, by its path."""


def endless(request: Json, tokens: int = 2000) -> Json:
    """The same request, with an answer that nobody will wait for. Eight of the usual length run at a time."""
    if "sampling_params" in request:
        return {**request, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    return {**request, "max_tokens": tokens, "ignore_eos": True}


def cached(usage: Json) -> int:
    """The cached tokens of a usage object."""
    return int(usage["prompt_tokens_details"]["cached_tokens"])
