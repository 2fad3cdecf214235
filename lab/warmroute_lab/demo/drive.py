"""Replays recorded agent sessions against a fleet, as the recorded programs would have sent them.

Several recordings play at once. The turns of a recording are in order: a turn starts when the answer before it has
ended. About half of the recordings go through the SDK, the others through a stock `openai` client whose `base_url` was
swapped. The recorded headers are sent as they were, so session signals reach the proxy exactly as each harness sends
them. Three harnesses send no session signal: one names its session through the SDK, one is given the SDK's derived key,
and for one the proxy finds the session.

Each request of a session enters through a random region, as if one host name stood for all regions. The regions are
drawn from the seed, so they are equal in both passes of a demo. Stock clients know nothing of regions, so they do not
say which region served the session last.
"""

import asyncio
import contextlib
import inspect
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import openai
from openai.resources.chat.completions import AsyncCompletions

import warmroute
from warmroute.contract import headers
from warmroute_lab.demo.audit import ClientTurn
from warmroute_lab.recordings import RecordedRequest, RecordedSession

TURN_TIMEOUT_S = 60.0
RECEIPT_TIMEOUT_S = 5.0
RECEIPT_POLL_S = 0.02

THROUGH_SDK = frozenset({"gemini", "mswe", "oc_anthropic", "oc_main", "oc_openai", "oc_subagent"})
"""Recordings that the SDK sends; the others come from a stock client."""

NAMED_SESSIONS = frozenset({"gemini"})
"""Recordings without a session signal for which the SDK names the session."""

NAME_FOR_ALL = "http://fleet.invalid/v1"

_ingress: ContextVar[str] = ContextVar("ingress")
"""The region through which the SDK's next request enters: what `NAME_FOR_ALL` resolves to."""

_CREATE_FIELDS = frozenset(inspect.signature(AsyncCompletions.create).parameters) - {"self"}


class BadAnswerError(Exception):
    """An answer that is not a complete chat completion."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where turns go, with which key, and how they are paced."""

    base_urls: Mapping[str, str]
    api_key: str
    seed: int
    think_s: float
    """Mean time between an answer and the next turn, in which the harness runs tools."""


def ingresses(recording: str, turns: int, regions: Sequence[str], seed: int) -> list[str]:
    """The region that each turn of a recording enters through."""
    draw = random.Random(f"{seed}:{recording}")  # noqa: S311 (a reproducible plan, not a secret)
    return [draw.choice(regions) for _ in range(turns)]


async def drive(
    recordings: Sequence[RecordedSession], target: Target, sessions: int, on_turn: Callable[[ClientTurn], None]
) -> list[ClientTurn]:
    """Replay all recordings, at most `sessions` at once. Returns the turns as clients saw them, in order of start."""
    turns: list[ClientTurn] = []
    limit = asyncio.Semaphore(sessions)

    def keep(turn: ClientTurn) -> None:
        turns.append(turn)
        on_turn(turn)

    async with contextlib.AsyncExitStack() as stack:
        stock = await _stock_clients(stack, target)
        sdk = await _roaming_clients(stack, target)
        async with asyncio.TaskGroup() as group:
            for recording in sorted(recordings, key=_work, reverse=True):  # the longest first
                clients = sdk if recording.name in THROUGH_SDK else stock
                group.create_task(_replay(recording, clients, target, limit, keep))
    return sorted(turns, key=lambda turn: turn.started_at)


def _work(recording: RecordedSession) -> int:
    return sum(len(str(request.body)) for request in recording.requests)


# `trust_env=False`: a SOCKS proxy in the environment would need a package that httpx lacks, and is of no use here.


async def _stock_clients(stack: contextlib.AsyncExitStack, target: Target) -> dict[str, openai.AsyncOpenAI]:
    """A client for each region. The clients differ only in `base_url` and share connections."""
    options = {"http_client": openai.DefaultAsyncHttpxClient(trust_env=False), **_client_options(target)}
    first = await stack.enter_async_context(openai.AsyncOpenAI(base_url=NAME_FOR_ALL, **options))
    return {region: first.with_options(base_url=url) for region, url in target.base_urls.items()}


async def _roaming_clients(stack: contextlib.AsyncExitStack, target: Target) -> dict[str, openai.AsyncOpenAI]:
    """One client of the SDK, with one name for all regions. `_ingress` says which region the name resolves to."""

    async def resolve(request: Any) -> None:
        address = urlsplit(target.base_urls[_ingress.get()])
        request.url = request.url.copy_with(host=address.hostname, port=address.port)

    network = openai.DefaultAsyncHttpxClient(trust_env=False, event_hooks={"request": [resolve]})
    client = warmroute.AsyncOpenAI(base_url=NAME_FOR_ALL, http_client=network, **_client_options(target))
    return dict.fromkeys(target.base_urls, await stack.enter_async_context(client))


def _client_options(target: Target) -> dict[str, Any]:
    return {"api_key": target.api_key, "max_retries": 0, "timeout": TURN_TIMEOUT_S}


async def _replay(
    recording: RecordedSession,
    clients: Mapping[str, openai.AsyncOpenAI],
    target: Target,
    limit: asyncio.Semaphore,
    keep: Callable[[ClientTurn], None],
) -> None:
    plan = ingresses(recording.name, len(recording.requests), list(clients), target.seed)
    draw = random.Random(f"{target.seed}:{recording.name}:think")  # noqa: S311 (a reproducible plan, not a secret)
    async with limit:
        with _session(recording):
            for request, ingress in zip(recording.requests, plan, strict=True):
                await asyncio.sleep(draw.uniform(0, 2 * target.think_s))
                keep(await _client_turn(recording, request, clients, ingress))


async def _client_turn(
    recording: RecordedSession, request: RecordedRequest, clients: Mapping[str, openai.AsyncOpenAI], ingress: str
) -> ClientTurn:
    receipt_id = usage = error = None
    started_at = time.time()
    try:
        receipt_id, usage = await _turn(clients, ingress, request, recording.harness)
    except Exception as problem:  # any failure of a turn is a result of the demo, and does not end it
        cause = f" ({problem.__cause__})" if problem.__cause__ else ""
        error = f"{type(problem).__name__}: {problem}{cause}"
    return ClientTurn(
        recording=recording.name,
        harness=recording.harness,
        n=request.n,
        turn=request.turn,
        ingress=ingress,
        started_at=started_at,
        ended_at=time.time(),
        receipt_id=receipt_id,
        usage=usage,
        error=error,
    )


def _session(recording: RecordedSession) -> contextlib.AbstractContextManager[object]:
    named = recording.name in NAMED_SESSIONS
    return warmroute.session(f"demo-{recording.name}") if named else contextlib.nullcontext()


async def _turn(
    clients: Mapping[str, openai.AsyncOpenAI], ingress: str, request: RecordedRequest, harness: str
) -> tuple[str | None, dict[str, Any] | None]:
    """Send one request and read its answer to the end: the receipt's id and the usage with the receipt."""
    known = {name: value for name, value in request.body.items() if name in _CREATE_FIELDS}
    unknown = {name: value for name, value in request.body.items() if name not in _CREATE_FIELDS}
    _ingress.set(ingress)
    response = await clients[ingress].chat.completions.with_raw_response.create(
        **known, extra_headers={headers.HARNESS: harness, **request.headers}, extra_body=unknown or None
    )
    receipt_id = response.headers.get(headers.RECEIPT)
    answer: Any = response.parse()
    usage = await _stream_usage(answer) if request.body.get("stream") else _answer_usage(answer)
    if usage is None and receipt_id:
        home = response.headers.get(headers.HOME)
        _ingress.set(home if home in clients else ingress)
        usage = await _fetched_usage(clients[_ingress.get()], receipt_id)
    return receipt_id, usage


def _answer_usage(answer: Any) -> dict[str, Any] | None:
    if not answer.choices or answer.choices[0].finish_reason is None:
        raise BadAnswerError("the answer has no finished choice")
    return _plain(answer.usage)


async def _stream_usage(stream: Any) -> dict[str, Any] | None:
    finished, usage = False, None
    async for chunk in stream:
        usage = chunk.usage or usage
        finished = finished or any(choice.finish_reason for choice in chunk.choices)
    if not finished:
        raise BadAnswerError("the stream ended without a finish reason")
    return _plain(usage)


def _plain(usage: Any) -> dict[str, Any] | None:
    return None if usage is None else usage.to_dict(mode="json")


async def _fetched_usage(client: openai.AsyncOpenAI, receipt_id: str) -> dict[str, Any] | None:
    """The usage of a request whose stream had none, from the receipt that the proxy keeps; None if it stays open."""
    deadline_s = time.monotonic() + RECEIPT_TIMEOUT_S
    while True:
        answer: Any = await client.get(f"/usage/receipts/{receipt_id}", cast_to=object)
        if answer.get("state") != "open":
            usage: dict[str, Any] | None = answer.get("usage")
            return usage
        if time.monotonic() > deadline_s:
            return None
        await asyncio.sleep(RECEIPT_POLL_S)
