"""Makes a trace of the records of a live proxy (`[proxy] record`): real traffic, for other fleets and policies.

Each process of a proxy writes a separate record, with the turns that clients sent to it. All processes read the clock
of the machine, so the turns of all records can be sorted by arrival into one trace.

A turn becomes a request of the trace if this proxy served it and its tokens were reported. Turns that failed, that
their clients left, or that were forwarded are left out; the other region records the forwarded ones. If a turn
continues a turn that had ended, the replay keeps the recorded pause between the two (closed loop). All other turns
arrive at their recorded times.

A record stores a prompt as a chain: hashes of the prompt up to each cut. There is a cut at the end of each message and
after every 2,048 bytes, but not at the borders of tokens. So the number of tokens is the number of bytes, divided by
the model's bytes per token in these records. A block gets its id from the first cut at or after its end: two prompts
share a block only if they share the text up to that cut. The ids of the blocks that an answer added to the cache are
found in the next turn, which sent the answer back.
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from warmroute.files.given import GivenFile
from warmroute_lab.replay.record import MAX_BYTES
from warmroute_lab.replay.trace import MAX_REQUESTS, IdCount, Request, Trace, TraceError, mixed
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.record import Dispatched, Ended, Failed, Frames, Placed, RecordError

BLOCK_TOKENS: Final = 128
MAX_FORKS: Final = 4
"""How many of the newest turns of its lineage (with this session, model, agent, tools and system prompt) a turn may
continue, if no other turn has continued them yet."""


class _Turn(NamedTuple):
    at_s: float
    end_s: float
    routing: RoutingRequest
    prompt_tokens: int
    completion_tokens: int


def load(paths: Sequence[Path], salt: int = 0) -> Trace:
    """The trace in the records of a proxy; `TraceError` if one cannot be read, or nothing was served."""
    turns: list[_Turn] = []
    for path in paths:
        try:
            _add_turns(turns, path)
        except RecordError as error:
            raise TraceError(f"{path} {error}") from None
    if not turns:
        raise TraceError(f"{' and '.join(map(str, paths))}: no turn was served in this record")
    turns.sort(key=lambda turn: turn.at_s)
    requests, sessions = _requests(turns, salt)
    named = sum(turn.routing.session is not None and not turn.routing.derived for turn in turns)
    name = ", ".join(path.name for path in paths)
    return Trace(name, BLOCK_TOKENS, requests, sessions, named_sessions=2 * named > len(turns))


def _add_turns(turns: list[_Turn], path: Path) -> None:
    """Add the turns of one record that this proxy served, in order of their ends."""
    placed: Placed | None = None
    open_: dict[int, tuple[RoutingRequest, float]] = {}
    failed_at_s: dict[tuple[int, int], float] = {}  # a retried turn keeps its first time
    dispatches = 0
    with GivenFile(path, MAX_BYTES) as file:
        for _, _, call in Frames(file.read):
            if isinstance(call, Placed):
                placed = call
            elif isinstance(call, Dispatched):
                routing = call.routing or (placed.routing if placed is not None else None)
                decision = call.decision or (placed.decision if placed is not None else None)
                if routing is not None and decision is not None and decision.kind == "local":
                    again = placed is not None and bool(placed.exclude)
                    first_s = failed_at_s.pop(_name(routing), call.now_s) if again else call.now_s
                    open_[dispatches] = routing, first_s
                    if len(turns) + len(open_) + len(failed_at_s) > MAX_REQUESTS:
                        raise TraceError(f"{path}: more than {MAX_REQUESTS} requests")
                dispatches += 1
            elif isinstance(call, Failed) and call.ticket in open_:
                routing, at_s = open_.pop(call.ticket)
                if call.at_fault:
                    failed_at_s[_name(routing)] = at_s
            elif isinstance(call, Ended) and call.ticket in open_:
                routing, at_s = open_.pop(call.ticket)
                if call.prompt_tokens and routing.chain.hashes:
                    turns.append(_Turn(at_s, call.now_s, routing, call.prompt_tokens, call.completion_tokens or 1))


def _requests(turns: list[_Turn], salt: int) -> tuple[list[Request], int]:
    ratios = _bytes_per_token(turns)
    began_s = turns[0].at_s
    sessions: dict[tuple[bool, int], int] = {}
    lasts: dict[int, list[int]] = {}
    requests: list[Request] = []
    continued_by: dict[int, int] = {}
    ids = IdCount()
    for number, turn in enumerate(turns):
        routing, ratio = turn.routing, ratios[turn.routing.model]
        key = (True, routing.lineage) if routing.session is None else (False, routing.session)
        session = sessions.setdefault(key, len(sessions))
        known = lasts.setdefault(routing.lineage, [])
        after = next((earlier for earlier in known if _continues(routing.chain, turns[earlier].routing.chain)), None)
        if after is not None:
            continued_by.setdefault(after, number)
            known.remove(after)
        known.insert(0, number)
        del known[MAX_FORKS:]
        at_s = turn.at_s - began_s
        if after is not None and turns[after].end_s <= turn.at_s:
            at_s = turn.at_s - turns[after].end_s
        else:
            after = None
        tokens = max(1, int(routing.chain.total_bytes / ratio))
        ids.add(tokens // BLOCK_TOKENS, tokens // BLOCK_TOKENS)
        requests.append(Request(
            number=number, at_s=at_s, after=after, session=session, turn=routing.turn, input_tokens=tokens,
            output_tokens=max(1, turn.completion_tokens),
            blocks=_blocks(routing.chain, tokens // BLOCK_TOKENS, ratio, salt),
            tail=mixed([routing.chain.hashes[-1]], salt)[0] if tokens % BLOCK_TOKENS else None,
            continued_tokens=min(int(routing.structural_bytes / ratio), tokens),
        ))  # fmt: skip
    for number, following in continued_by.items():
        request = requests[number]
        prompt = request.input_tokens // BLOCK_TOKENS
        answered = (request.input_tokens + request.output_tokens) // BLOCK_TOKENS
        sent_back = requests[following].input_tokens // BLOCK_TOKENS
        request.blocks += requests[following].blocks[prompt : min(answered, sent_back)]
    return requests, len(sessions)


def _bytes_per_token(turns: list[_Turn]) -> dict[str, float]:
    sums: dict[str, list[int]] = {}
    for turn in turns:
        model = sums.setdefault(turn.routing.model, [0, 0])
        model[0] += turn.routing.chain.total_bytes
        model[1] += turn.prompt_tokens
    return {model: size / tokens for model, (size, tokens) in sums.items()}


def _blocks(chain: Chain, full: int, ratio: float, salt: int) -> list[int]:
    if not full:
        return []
    numbers = np.arange(1, full + 1, dtype=np.uint64)
    at = np.searchsorted(np.asarray(chain.ends), numbers.astype(np.float64) * (BLOCK_TOKENS * ratio))
    cuts = np.asarray(chain.hashes, dtype=np.uint64)[np.minimum(at, len(chain.ends) - 1)]
    with np.errstate(over="ignore"):
        return mixed(cuts ^ (numbers * np.uint64(0x9E3779B97F4A7C15)), salt)


def _continues(chain: Chain, before: Chain) -> bool:
    """Whether a prompt begins with all of an earlier one, and goes on."""
    at = bisect_left(chain.ends, before.total_bytes)
    return at < len(chain.ends) - 1 and chain.ends[at] == before.total_bytes and chain.hashes[at] == before.hashes[-1]


def _name(routing: RoutingRequest) -> tuple[int, int]:
    return routing.lineage, routing.chain.hashes[-1]
