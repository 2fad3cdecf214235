"""Recorded prompts as a trace: chat bodies of agent sessions, turn after turn, closed loop.

A prompt is identified as in the live proxy, by its chain: hashes of the prompt up to several cuts (ends of messages and
positions within long ones). Its tokens are its canonical bytes / `BYTES_PER_TOKEN`. A block is named by the hash at the
first cut at or after the block's end: two prompts share a block only if they share everything up to that cut. A
recording does not say how long an answer took or how long its user thought, so each turn comes `THINK_S` after the
previous turn has ended. Each session is played `copies` times. Each copy has content of its own, except for tools,
which are the same for all users of a program.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from warmroute_lab.replay.trace import Request, Trace, mixed
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.fingerprint import fingerprint_chat

BLOCK_TOKENS: Final = 64
BYTES_PER_TOKEN: Final = 4
OUTPUT_TOKENS: Final = 200
THINK_S: Final = 5.0
STARTS_WITHIN_S: Final = 600.0
_OWN: Final = 1 << 63


class Recorded(NamedTuple):
    """A session: its name, and the chat-completions bodies that it sent, in order."""

    name: str
    bodies: Sequence[dict[str, Any]]


def load(sessions: Iterable[Recorded], copies: int = 1, seed: int = 1) -> Trace:
    """The trace of these sessions, each played `copies` times. `seed` draws the starts, within ten minutes."""
    random = np.random.default_rng(seed)
    requests: list[Request] = []
    count = 0
    for recorded in sessions:
        chains = [_chain(body) for body in recorded.bodies]
        for _ in range(copies):
            _add(requests, chains, count, float(random.random()) * STARTS_WITHIN_S)
            count += 1
    return Trace("recorded sessions", BLOCK_TOKENS, requests, count, named_sessions=True)


def _chain(body: dict[str, Any]) -> tuple[Chain, int]:
    """A prompt's chain, and how many of its bytes are tools."""
    tools = body.get("tools")
    raw = msgspec.Raw(msgspec.json.encode(tools)) if tools else None
    made = fingerprint_chat(raw, msgspec.Raw(msgspec.json.encode(body["messages"])), 0)
    alone = fingerprint_chat(raw, msgspec.Raw(b'[{"role":"user"}]'), 0).chain.ends
    return made.chain, alone[-2] if len(alone) > 1 else 0


def _add(requests: list[Request], chains: Sequence[tuple[Chain, int]], session: int, start_s: float) -> None:
    before, seen = None, 0
    for turn, (chain, tool_bytes) in enumerate(chains, 1):
        tokens = max(1, -(-chain.total_bytes // BYTES_PER_TOKEN))
        blocks, tail = _blocks(chain, tokens, tool_bytes, session)
        number = len(requests)
        at_s = start_s if before is None else THINK_S
        requests.append(Request(
            number=number, at_s=at_s, after=before, session=session, turn=turn, input_tokens=tokens,
            output_tokens=OUTPUT_TOKENS, blocks=blocks, tail=tail, continued_tokens=seen,
        ))  # fmt: skip
        before, seen = number, tokens


def _blocks(chain: Chain, tokens: int, tool_bytes: int, session: int) -> tuple[list[int], int | None]:
    ends, hashes = chain.ends, chain.hashes
    block_bytes = BLOCK_TOKENS * BYTES_PER_TOKEN
    names = []
    for number in range(-(-tokens // BLOCK_TOKENS)):
        end = min((number + 1) * block_bytes, ends[-1])
        owner = 0 if end <= tool_bytes else _OWN | session << 20
        names.append((hashes[bisect_left(ends, end)] ^ owner ^ number) & 0xFFFFFFFFFFFFFFFF)
    ids = mixed(names, 0)
    full = tokens // BLOCK_TOKENS
    return ids[:full], ids[full] if full < len(ids) else None
