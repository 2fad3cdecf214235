"""Reads traces of agent sessions with sub-agents, as AIPerf's `weka_trace`, InferenceX and llm-d do; closed loop.

A file is one session as a JSON object, or one session a line
(https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/weka-trace.md and src/aiperf/dataset/loader/
weka_trace_models.py; the format is that of https://github.com/callanjfox/kv-cache-tester):

    {"id": ..., "block_size": 64, "hash_id_scope": "local", "requests": [request, ...]}
    request = {"t": s, "type": "n" | "s", "in": n, "out": n, "hash_ids": [...], "api_time": s, "think_time": s, ...}
    request = {"t": s, "type": "subagent", "agent_id": ..., "requests": [request, ...], ...}

An id stands for its block and all blocks before it, within its session alone: sessions share nothing. The times of a
sub-agent's requests count from the start of the session. But if any sub-agent's request in a session has an earlier
time than its sub-agent, the times of all of them count from the starts of their sub-agents.

The trace does not record what a request waited for. In the replay a request follows the request of its session that had
ended last when it came, after the recorded pause, at most half an hour. A sub-agent's request follows a request of this
sub-agent; the first one follows a request of the session. A turn after sub-agents therefore waits for the last of them.
Each sub-agent counts as a separate session. AIPerf also splits agents that are recorded as one stream; here they are
one session, whose turns branch.

Each session starts at a random time within an hour, drawn in the order of files; equal seeds give equal times.
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from warmroute_lab.replay.loaders.sessions import BLOCK_TOKENS, MAX_TURN_TOKENS, STARTS_WITHIN_S, THINK_LIMIT_S
from warmroute_lab.replay.trace import MAX_REQUESTS, IdCount, Request, Trace, TraceError, mixed

MAX_TIME_S: Final = 1e9
MAX_OPEN: Final = 256
"""How many of the latest requests are searched for the one that a request follows."""
MAX_COMPARED: Final = 8
"""How many of the latest requests of a session a prompt is compared with, to find what it continues."""

_Time = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S)]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TURN_TOKENS)]


class _Call(msgspec.Struct, gc=False, tag_field="type", tag="n"):
    t: _Time
    input_tokens: _Tokens = msgspec.field(name="in")
    output_tokens: _Tokens = msgspec.field(name="out")
    hash_ids: list[int] = []
    api_time: _Time | None = None


class _Streamed(_Call, gc=False, tag_field="type", tag="s"):
    pass


class _SubAgent(msgspec.Struct, gc=False, tag_field="type", tag="subagent"):
    t: _Time
    requests: list[_Call | _Streamed]


class _Session(msgspec.Struct, gc=False):
    block_size: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_TOKENS)]
    requests: list[_Call | _Streamed | _SubAgent]
    hash_id_scope: Literal["local"] = "local"


class _Ended(msgspec.Struct, gc=False):
    """A request, its end in the recording, and its chain, whose beginning a later request may share."""

    number: int
    ended_s: float
    chain: list[int]


class _Reader:
    """Makes the requests of one session after the other."""

    def __init__(self, salt: int) -> None:
        self.requests: list[Request] = []
        self.sessions = 0
        self._salt = salt
        self._ids = IdCount()
        self._names: dict[int, int] = {}  # an id in the session's file -> its number
        self._next_name = 0

    def add(self, session: _Session, start_s: float) -> None:
        if BLOCK_TOKENS % session.block_size:
            raise TraceError(f"block_size {session.block_size} does not divide {BLOCK_TOKENS}")
        self._names = {}
        relative = any(
            call.t < each.t for each in session.requests if isinstance(each, _SubAgent) for call in each.requests
        )
        root, self.sessions = self.sessions, self.sessions + 1
        ended: list[_Ended] = []
        of_root: list[_Ended] = []
        for each in sorted(session.requests, key=lambda each: each.t):
            if isinstance(each, _SubAgent):
                offset_s = each.t if relative else 0.0
                own: list[_Ended] = []
                for call in sorted(each.requests, key=lambda call: call.t):
                    at_s = call.t + offset_s
                    follows = _last_ended(own, at_s) or _last_ended(ended, at_s)
                    self._add(call, at_s, session.block_size, self.sessions, own, follows, start_s)
                self.sessions += 1
                ended += own
            else:
                follows = _last_ended(ended, each.t)
                self._add(each, each.t, session.block_size, root, of_root, follows, start_s)
                ended.append(of_root[-1])

    def _add(
        self,
        call: _Call,
        at_s: float,
        fine_tokens: int,
        session: int,
        own: list[_Ended],
        follows: _Ended | None,
        start_s: float,
    ) -> None:
        """Add a request. `own`: the earlier requests of its session or sub-agent."""
        tokens = max(1, call.input_tokens)
        chain, tail = self._chain(call.hash_ids, tokens, fine_tokens)
        continued = max((_common(chain, each.chain) for each in own[-MAX_COMPARED:]), default=0) * BLOCK_TOKENS
        waits_s = start_s + at_s if follows is None else min(at_s - follows.ended_s, THINK_LIMIT_S)
        number = len(self.requests)
        if number >= MAX_REQUESTS:
            raise TraceError(f"more than {MAX_REQUESTS} requests")
        self.requests.append(Request(
            number=number, at_s=waits_s, after=None if follows is None else follows.number, session=session,
            turn=len(own) + 1, input_tokens=tokens, output_tokens=max(1, call.output_tokens), blocks=chain, tail=tail,
            continued_tokens=min(continued, tokens),
        ))  # fmt: skip
        own.append(_Ended(number, at_s + (call.api_time or 0.0), chain))

    def _chain(self, fine: list[int], tokens: int, fine_tokens: int) -> tuple[list[int], int | None]:
        """The chain (ids of blocks), and the id of the partial block at its end. Blocks without an id are new in each
        request."""
        ratio = BLOCK_TOKENS // fine_tokens
        full, rest = divmod(tokens, BLOCK_TOKENS)
        self._ids.add(full + 1, full + 1)
        named: list[int] = []
        for at in range(full + (rest > 0)):
            end = min((at + 1) * ratio, -(-tokens // fine_tokens)) - 1
            if end < len(fine):
                name = self._names.setdefault(fine[end], self._next_name)
                self._next_name += name == self._next_name
            else:
                name, self._next_name = self._next_name, self._next_name + 1
            named.append(name << 1 | (at < full))
        chain = mixed(named, self._salt)
        return chain, chain[full] if rest else None


def load(name: str, sessions: Iterable[tuple[str, bytes]], salt: int, seed: int) -> Trace:
    """The trace of `sessions`: pairs of a place, for error messages, and a JSON text. Raises: TraceError."""
    random = np.random.default_rng(seed)
    reader = _Reader(salt)
    decode = msgspec.json.Decoder(_Session).decode
    for named, text in sessions:
        try:
            session = decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            problem = str(error).encode("unicode_escape").decode()  # an unknown `type` is quoted as it stands
            raise TraceError(f"{named}: {problem}") from None
        try:
            reader.add(session, float(random.random()) * STARTS_WITHIN_S)
        except TraceError as error:
            raise TraceError(f"{named}: {error}") from None
    return Trace(name, BLOCK_TOKENS, reader.requests, reader.sessions, named_sessions=True)


def _last_ended(ended: list[_Ended], at_s: float) -> _Ended | None:
    """Of the last `MAX_OPEN` requests, the one that ended last before or at `at_s`."""
    found = (each for each in ended[-MAX_OPEN:] if each.ended_s <= at_s)
    return max(found, key=lambda each: each.ended_s, default=None)


def _common(one: list[int], other: list[int]) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
