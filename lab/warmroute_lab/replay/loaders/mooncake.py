"""Mooncake's traces (kvcache-ai/Mooncake, `FAST25-release/traces`): chat requests in blocks of 512 tokens, open loop.

A line is `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}`; an id stands for its block and
all before it. Timestamps are quantised to a few seconds, so requests of equal time are spread at random over the gap to
the next time. The same seed always gives the same times.

The file names no sessions. A request's chain is its list of ids. The last block of an earlier chain is left out, since
it may be partial. If at least two blocks remain, and the request's chain begins with them, the request continues the
earlier one. If several earlier requests fit, the one with the longest chain counts.

Answers have no ids in the file, so they are never found in a cache.
"""

from itertools import chain as chained
from typing import Annotated

import msgspec
import numpy as np

from warmroute_lab.replay.trace import Request, Trace, TraceError, mixed

BLOCK_TOKENS = 512
MAX_TIME_MS = 1e15
MAX_TOKENS = 1 << 40
MAX_ID = 2**64


class _Row(msgspec.Struct, gc=False):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_MS)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]]


def load(name: str, lines: list[bytes], salt: int, seed: int) -> Trace:
    found = _rows(name, lines)
    times = np.array([row.timestamp for row in found])
    times = (times - times.min()) / 1000  # a trace may have the time of day
    order = np.argsort(times, kind="stable")
    times = _spread(times[order], seed)
    again = np.argsort(times, kind="stable")
    times = times[again]
    rows = [found[at] for at in order[again].tolist()]
    try:
        chains = _mixed_chains(rows, salt)
    except OverflowError:  # 20 ms faster than a check of each id
        at = next(at for at, row in enumerate(found, 1) if max(row.hash_ids) >= MAX_ID)
        raise TraceError(f"{name}: line {at}: hash_ids are not all below {MAX_ID}") from None
    sessions: dict[int, tuple[int, int, int]] = {}  # last full block of a turn -> session, turn, tokens
    requests = []
    count = 0
    for number, (row, chain, at_s) in enumerate(zip(rows, chains, times.tolist(), strict=True)):
        known = _continued(chain, sessions)
        if known is None:
            known = (count, 0, 0)
            count += 1
        session, turn, continued = known
        if len(chain) > 2:
            sessions[chain[-2]] = (session, turn + 1, (len(chain) - 1) * BLOCK_TOKENS)
        full = row.input_length // BLOCK_TOKENS
        tail = chain[full] if full < len(chain) else None
        requests.append(Request(
            number=number, at_s=at_s, after=None, session=session, turn=turn + 1, input_tokens=row.input_length,
            output_tokens=row.output_length or 1, blocks=chain, tail=tail, continued_tokens=continued,
        ))  # fmt: skip
    return Trace(name, BLOCK_TOKENS, requests, count, named_sessions=False)


def _rows(name: str, lines: list[bytes]) -> list[_Row]:
    rows: list[_Row] = []
    try:
        rows.extend(map(msgspec.json.Decoder(_Row).decode, lines))  # up to the first line that is not a row
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{name}: line {len(rows) + 1}: {error}") from None
    for number, row in enumerate(rows, 1):
        blocks = -(-row.input_length // BLOCK_TOKENS)
        if len(row.hash_ids) != blocks:
            raise TraceError(
                f"{name}: line {number}: input_length {row.input_length} needs {blocks} hash_ids of "
                f"{BLOCK_TOKENS} tokens, there are {len(row.hash_ids)}"
            )
    return rows


def _spread(
    times: "np.ndarray[tuple[int], np.dtype[np.float64]]", seed: int
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Sorted times. Equal ones are spread over the gap to the next time, the last group over the median gap."""
    values, group = np.unique(times, return_inverse=True)
    if len(values) < 2:
        return times
    gaps = np.diff(values)
    middle = np.sort(gaps)[(len(gaps) - 1) // 2 : len(gaps) // 2 + 1]  # np.median would import masked arrays
    gaps = np.append(gaps, middle.mean())
    return times + np.random.default_rng(seed).random(len(times)) * gaps[group]


def _mixed_chains(rows: list[_Row], salt: int) -> list[list[int]]:
    count = sum(len(row.hash_ids) for row in rows)
    flat = mixed(np.fromiter(chained.from_iterable([row.hash_ids for row in rows]), np.uint64, count), salt)
    chains, start = [], 0
    for row in rows:
        chains.append(flat[start : start + len(row.hash_ids)])
        start += len(row.hash_ids)
    return chains


def _continued(chain: list[int], sessions: dict[int, tuple[int, int, int]]) -> tuple[int, int, int] | None:
    return next(filter(None, map(sessions.get, chain[:0:-1])), None)
