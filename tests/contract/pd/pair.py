"""A prefill and a decode engine, and the legs of requests to them."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, NamedTuple

import httpx
from tests.contract.subject import Kind, in_thread
from tests.machine import seconds
from tests.subjects.processes import PLAIN, until

TIMEOUT_S = 50.0
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Pair:
    """Where a pair serves. `bootstrap_port` is prefill's."""

    kind: Kind
    prefill: str
    decode: str
    bootstrap_port: int

    @property
    def bootstrap(self) -> str:
        return f"http://127.0.0.1:{self.bootstrap_port}"

    def body(self, content: str, **more: Any) -> dict[str, Any]:
        """A chat request with a room of its own."""
        room = random.randrange(1, 1 << 62)
        return {
            "model": "tiny",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 6,
            "temperature": 0,
            "rid": f"rid-{room:x}",
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.bootstrap_port,
            "bootstrap_room": room,
            **more,
        }

    def both(self, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
        """Send a request to both, as a router does; what prefill and what decode answered."""
        prefill, decode = post(self.prefill, body), post(self.decode, body)
        return prefill.result(seconds(TIMEOUT_S)), decode.result(seconds(TIMEOUT_S))

    def abort_all(self) -> None:
        """End what a test left on the engines that still run."""
        for url in (self.prefill, self.decode):
            with contextlib.suppress(httpx.ConnectError):
                httpx.post(f"{url}/abort_request", json={"abort_all": True})

    def queue(self, url: str, name: str) -> int:
        """How many requests are in a queue of `/v1/loads`."""
        found = httpx.get(f"{url}/v1/loads", verify=PLAIN).json()["loads"][0]["disaggregation"]
        return int(found[f"{name}_reqs"])


def post(url: str, body: dict[str, Any], path: str = CHAT) -> Future[httpx.Response]:
    """Post from a thread of its own."""
    return in_thread(lambda: httpx.post(url + path, json=body, timeout=seconds(TIMEOUT_S), verify=PLAIN))


def abort(url: str, body: dict[str, Any]) -> None:
    """Abort a leg by its request id."""
    assert httpx.post(f"{url}/abort_request", json={"rid": body["rid"]}, verify=PLAIN).status_code == 200


def fresh_text(words: int) -> str:
    """A text that no other request has."""
    return " ".join(f"{random.randrange(1 << 32):x}" for _ in range(words))


COMPUTED_TOKENS = 15_000
"""Of a prompt that takes seconds, so that something can be done while it is computed."""

ATTEMPTS = 5
ATTEMPTS_S = 20.0
"""As many, and more for as long as that: they are short where the engine is quick."""


def attempts() -> Iterator[int]:
    """Tries of what this process may be too late for."""
    end_s = time.monotonic() + seconds(ATTEMPTS_S)
    yield from takewhile(lambda number: number < ATTEMPTS or time.monotonic() < end_s, count())


class Legs(NamedTuple):
    """A request on both sides of a pair."""

    prefill: Future[httpx.Response]
    decode: Future[httpx.Response]


def aborted_while_it_computes(pair: "Pair", side: str) -> Legs:
    """A request that was aborted on one side while its prompt was computed.

    On a busy machine this process may come too late, when the prompt is computed already; then it tries another one.
    """
    for _ in attempts():
        body = {**pair.body(""), "input_ids": [random.randrange(300, 2000) for _ in range(COMPUTED_TOKENS)]}
        decode = post(pair.decode, body, "/generate")
        wait_for(lambda: pair.queue(pair.decode, "decode_transfer_queue") == 1)
        prefill = post(pair.prefill, body, "/generate")
        wait_for(lambda: prefill.done() or _active_tokens(pair.prefill) > 0)  # noqa: B023 - called before the next one
        abort(getattr(pair, side), body)
        if prefill.result(seconds(TIMEOUT_S)).status_code != 200 or _finish(prefill) == "abort":
            return Legs(prefill, decode)
        decode.result(seconds(TIMEOUT_S))
    raise AssertionError("each prompt was computed before it could be aborted")


def aborted_while_it_waits(pair: "Pair") -> dict[str, Any]:
    """A request that was aborted in prefill while it waited for decode, which it does for seconds only.

    On a machine that stands still this process may come too late, when it has given up; then it tries another one.
    """
    for _ in attempts():
        body = pair.body(fresh_text(20))
        prefill = post(pair.prefill, body)
        wait_for(lambda: prefill.done() or pair.queue(pair.prefill, "prefill_bootstrap_queue") == 1)  # noqa: B023 - called before the next one
        abort(pair.prefill, body)
        answer = prefill.result(seconds(TIMEOUT_S))
        assert answer.status_code == 500, answer.text
        if "Aborted by AbortReq." in answer.json()["message"]:
            return body
    raise AssertionError("each request had given up before it could be aborted")


def _active_tokens(url: str) -> int:
    active: int = httpx.get(f"{url}/v1/loads", verify=PLAIN).json()["loads"][0]["num_active_tokens"]
    return active


def _finish(answered: Future[httpx.Response]) -> str:
    reason: str = answered.result().json()["meta_info"]["finish_reason"]["type"]
    return reason


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a request is where it is wanted."""
    until(condition, "the request is there", TIMEOUT_S)
