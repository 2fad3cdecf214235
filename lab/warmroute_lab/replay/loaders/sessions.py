"""Reads agent sessions that are reduced to lengths and shared prefixes: one session a line, closed loop.

    {"session": name, "block": 64, "tool_tokens": n, "system_tokens": n, "turns": [turn, ...]}
    turn = [t_s, input_tokens, output_tokens, blocks, shared_blocks, base_turn, think_s, api_s]

The first `shared_blocks` blocks of a turn's prompt are those of turn `base_turn` of the same session (-1: none); its
other blocks are new. Sessions in which tools and system prompt have the same sizes share both.

Each session starts at a random time within an hour, drawn in file order; equal seeds give equal times. A turn comes
`think_s`, at most half an hour, after the previous turn has ended. Turns after an hour of thinking and answering are
left out. Blocks are coarsened to `BLOCK_TOKENS`: the id of a coarse block is made of the id of its last fine block (a
block of the file), and of whether the coarse block is full. Answers have no ids.
"""

from typing import Annotated, Final

import msgspec
import numpy as np

from warmroute_lab.replay.trace import MAX_REQUESTS, IdCount, Request, Trace, TraceError, mixed

BLOCK_TOKENS: Final = 512
STARTS_WITHIN_S: Final = 3600.0
SESSION_LIMIT_S: Final = 3600.0
THINK_LIMIT_S: Final = 1800.0
MAX_TURN_TOKENS: Final = 1 << 26

_Count = Annotated[int, msgspec.Meta(ge=-(1 << 60), le=1 << 60)]
_Turn = tuple[float, _Count, _Count, _Count, _Count, _Count | None, float | None, float | None]
_SHARED: Final = 1 << 63


class _Session(msgspec.Struct, gc=False):
    block: _Count
    tool_tokens: _Count
    system_tokens: _Count
    turns: list[_Turn]


class _Chains:
    """The coarse chains (lists of block ids) of a session's turns. Chains share the objects of equal ids, to save
    memory: a prompt has hundreds of ids."""

    def __init__(self, shared: list[int], fine_tokens: int, number: int, salt: int, ids: IdCount) -> None:
        """`ids` counts the coarse ids of the trace. Fine ids are counted apart, since only one session's are kept."""
        self._ids, self._fine_ids = ids, IdCount()
        self._shared = shared
        self._ratio = BLOCK_TOKENS // fine_tokens
        self._number = number
        self._salt = salt
        self._fine: list[list[int]] = []
        self._coarse: list[list[int]] = []
        self._next = 0

    def add(self, blocks: int, shared_blocks: int, base_turn: int) -> list[int]:
        """The chain of the next turn: its coarse blocks, of which the last may be partial."""
        base = self._fine[base_turn] if base_turn >= 0 else []
        fine = base[:shared_blocks]
        fresh = blocks - len(fine)
        self._fine_ids.add(blocks, max(fresh, 0))
        fine = fine + list(range(self._next, self._next + fresh))
        self._next += fresh
        ratio = self._ratio
        self._ids.add(-(-blocks // ratio), -(-fresh // ratio))
        same = min(shared_blocks, len(base)) // ratio
        coarse = self._coarse[base_turn][:same] if base_turn >= 0 else self._shared[: blocks // ratio]
        if len(coarse) * ratio < len(fine):
            named = []
            for start in range(len(coarse) * ratio, len(fine), ratio):
                end = min(start + ratio, len(fine))
                named.append(self._number << 32 | fine[end - 1] << 1 | (end - start == ratio))
            coarse = coarse + mixed(named, self._salt)
        if len(coarse) * ratio > len(fine):
            coarse = coarse[: -(-len(fine) // ratio)]
        self._fine.append(fine)
        self._coarse.append(coarse)
        return coarse


def load(name: str, lines: list[bytes], salt: int, seed: int) -> Trace:
    random = np.random.default_rng(seed)
    shared_by_sizes: dict[tuple[int, int], list[int]] = {}
    requests: list[Request] = []
    ids = IdCount()
    decode = msgspec.json.Decoder(_Session).decode
    for number, line in enumerate(lines):
        try:
            session = decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise TraceError(f"{name}: line {number + 1}: {error}") from None
        if session.block < 1 or BLOCK_TOKENS % session.block:
            raise TraceError(f"{name}: line {number + 1}: block {session.block} does not divide {BLOCK_TOKENS}")
        sizes = (session.tool_tokens, session.system_tokens)
        if min(sizes) < 0 or max(sizes) > MAX_TURN_TOKENS:
            raise TraceError(f"{name}: line {number + 1}: tool_tokens and system_tokens cannot be {sizes}")
        if sizes not in shared_by_sizes:
            first = _SHARED | len(shared_by_sizes) << 32
            count = (session.tool_tokens + session.system_tokens) // BLOCK_TOKENS
            ids.add(count, count)
            shared_by_sizes[sizes] = mixed(np.arange(count, dtype=np.uint64) + np.uint64(first), salt)
        chains = _Chains(shared_by_sizes[sizes], session.block, number, salt, ids)
        start_s = float(random.random()) * STARTS_WITHIN_S
        try:
            _add_turns(requests, session, chains, start_s, number)
        except (IndexError, ValueError) as error:
            raise TraceError(f"{name}: line {number + 1}: {error}") from None
        if len(requests) > MAX_REQUESTS:
            raise TraceError(f"{name}: more than {MAX_REQUESTS} requests")
    return Trace(name, BLOCK_TOKENS, requests, len(lines), named_sessions=True)


def _add_turns(requests: list[Request], session: _Session, chains: _Chains, start_s: float, number: int) -> None:
    before: int | None = None
    elapsed_s = 0.0
    for at, turn in enumerate(session.turns):
        _, input_tokens, output_tokens, blocks, shared_blocks, base, think, api = turn
        base_turn = -1 if base is None else base
        least = min(input_tokens - 1, output_tokens, blocks, shared_blocks, think or 0, api or 0)
        if least < 0 or blocks * session.block > MAX_TURN_TOKENS or not -1 <= base_turn < at:
            raise ValueError(f"turn {at} has impossible numbers: {turn}")
        think_s = min(think or 0.0, THINK_LIMIT_S)
        elapsed_s += think_s if at else 0.0
        if elapsed_s > SESSION_LIMIT_S:
            return
        elapsed_s += api or 0.0
        chain = chains.add(blocks, shared_blocks, base_turn)
        full = min(input_tokens // BLOCK_TOKENS, len(chain))
        tail = chain[full] if full < len(chain) and full * BLOCK_TOKENS < input_tokens else None
        requests.append(Request(
            number=len(requests), at_s=start_s if before is None else think_s, after=before, session=number,
            turn=at + 1, input_tokens=input_tokens, output_tokens=max(1, output_tokens), blocks=chain, tail=tail,
            continued_tokens=min(shared_blocks * session.block, input_tokens),
        ))  # fmt: skip
        before = len(requests) - 1
