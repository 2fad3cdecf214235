"""What clients send, and where each turn enters, drawn from the seed: pure.

Agents are recorded sessions of harnesses, and made-up ones whose conversation grows by an answer and a message a turn.
Each turn enters at a region of its own, at one of its proxies, as where one name stands for all regions. Half of the
agents send the home that the last answer named, as the SDK does; the others are stock clients. A tenant that may be
served in some regions alone has a word in its messages that is looked for everywhere else.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from tests.field.chaos.asks import Ask

from warmroute_lab.recordings import RecordedSession, load_recordings

MODEL: Final = "kimi-k2.5"
TENANTS: Final[dict[str, tuple[str, ...]]] = {"anywhere": (), "eastern": ("east",), "western": ("west", "north")}
"""Tenant -> the regions where it may be served; none: all."""

ANSWER_TOKENS: Final = 16
UNSCRIPTED_BYTES: Final = 49_152
"""Of an answer that is not scripted, and of its request, at most: SGLang has a context of 16,384 tokens here."""

_OF_TENANT: Final = {"anywhere": 8, "eastern": 1, "western": 1}
_RECORDED_SHARE: Final = 0.2
_SYSTEM: Final = "You are a careful assistant who answers at length and in order. "
_WORDS: Final = tuple(f"word{number}" for number in range(500))


def canary(tenant: str) -> str:
    """The word that only messages of a tenant have."""
    return f"canary-of-{tenant}-residents"


def answer_canary(tenant: str) -> str:
    """The word that only answers to a tenant have. Unlike those of messages, they may pass where its client entered."""
    return f"reply-to-{tenant}-residents"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. `entry` orders the regions, the first is where it enters; `proxy` is the number of the proxy there."""

    agent: int
    number: int
    tenant: str
    ask: Ask
    entry: tuple[str, ...]
    proxy: int
    named: bool
    """Whether its client names the session."""

    hints: bool
    """Whether its client sends the home of the last answer."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent and all that it will send."""

    number: int
    tenant: str
    recorded: str
    turns: tuple[Turn, ...]


def agents(seed: int, turns: int, regions: Sequence[str], *, scripted: bool = True) -> Iterator[Agent]:
    """Agents until they have `turns` turns together. `scripted`: they tell the engine what to answer."""
    number = sent = 0
    while sent < turns:
        agent = _agent(seed, number, regions)
        if not scripted:
            turns_of_it = (replace(turn, ask=_unscripted(turn.ask)) for turn in agent.turns)
            agent = replace(agent, turns=tuple(turn for turn in turns_of_it if len(turn.ask.body) <= UNSCRIPTED_BYTES))
        yield agent
        sent += len(agent.turns)
        number += 1


def _agent(seed: int, number: int, regions: Sequence[str]) -> Agent:
    draw = random.Random(f"agent {seed} {number}")
    tenant = draw.choices(list(_OF_TENANT), list(_OF_TENANT.values()))[0]
    recorded, hints = "", draw.random() < 0.5
    if tenant == "anywhere" and draw.random() < _RECORDED_SHARE:
        recording = draw.choice(_recordings())
        recorded, named = recording.name, any("session" in name.lower() for name in recording.requests[0].headers)
        requests = [_of_agent(request.headers, request.body, f"{seed}-{number}") for request in recording.requests]
    else:
        named = draw.random() < 0.7
        requests = list(_made_up(draw, f"{seed}-{number}", tenant, named=named))
    found = []
    for at, (headers, body) in enumerate(requests):
        text = " ".join(f"{number}.{at}.{word}" for word in range(draw.randint(2, 25)))
        entry = tuple(draw.sample(list(regions), len(regions)))
        if TENANTS[tenant]:
            text = f"{answer_canary(tenant)} {text}"
        ask = _ask(number * 1000 + at, headers, body, text, stream=draw.random() < 0.7)
        found.append(Turn(number, at, tenant, ask, entry, draw.randrange(2), named, hints))
    return Agent(number, tenant, recorded, tuple(found))


def _made_up(
    draw: random.Random, name: str, tenant: str, *, named: bool
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    headers = {"x-session-affinity": f"made-up-{name}"} if named else {}
    system = f"Session {name}. " + _SYSTEM * draw.randint(40, 160)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for turn in range(draw.randint(4, 12)):
        words = " ".join(draw.choices(_WORDS, k=draw.randint(20, 120)))
        messages.append({"role": "user", "content": f"{canary(tenant)} {turn} {words}"})
        yield headers, {"messages": list(messages)}
        messages.append({"role": "assistant", "content": f"answer {turn} of {name} {words[:200]}"})


def _of_agent(headers: dict[str, str], body: dict[str, Any], name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """A recorded request with a session of its own and a system prompt that no other agent has."""
    own = {
        key: f"{value}-{name}" if any(word in key.lower() for word in ("session", "affinity", "thread")) else value
        for key, value in headers.items()
    }
    messages = [dict(message) for message in body["messages"]]
    first = messages[0]
    if isinstance(first.get("content"), str):
        first["content"] = f"Agent {name}. {first['content']}"
    kept = {key: value for key, value in body.items() if key in {"tools", "prompt_cache_key", "promptCacheKey"}}
    for key in ("prompt_cache_key", "promptCacheKey"):
        if key in kept:
            kept[key] = f"{kept[key]}-{name}"
    return own, {**kept, "messages": messages}


def _ask(number: int, headers: dict[str, str], body: dict[str, Any], text: str, *, stream: bool) -> Ask:
    whole = {**body, "model": MODEL, "metadata": {"script": json.dumps({"text": text})}}
    if stream:
        whole |= {"stream": True, "stream_options": {"include_usage": True}}
    return Ask(
        number, "/v1/chat/completions", json.dumps(whole).encode(), text, "", again=False, stream=stream, tenant=0,
        leave="stays", leave_after=0.0, resets=False, reads_slowly=False, keeps=False,
        headers=tuple(sorted(headers.items())),
    )  # fmt: skip


def _unscripted(ask: Ask) -> Ask:
    body = {**json.loads(ask.body), "max_tokens": ANSWER_TOKENS}
    del body["metadata"]
    return replace(ask, body=json.dumps(body).encode(), text=None)


def with_key(ask: Ask, mark: str) -> Ask:
    """The same with an idempotency key that no other try has."""
    return replace(ask, headers=(*ask.headers, ("idempotency-key", f"try-{mark}")))


def with_home(ask: Ask, home: str) -> Ask:
    """The same with the hint."""
    return replace(ask, headers=(*ask.headers, ("x-warmroute-home", home)))


@lru_cache(maxsize=1)
def _recordings() -> tuple[RecordedSession, ...]:
    return tuple(load_recordings())
