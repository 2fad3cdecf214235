"""Applies the KV events of one worker in order: takes batches of events, and calls the router.

This module has no sockets. A batch is the msgpack array `[time, events, rank]`, and its events are maps. Batches are
numbered, and the number of a batch decides what happens to it:

- the next number: the batch is applied;
- a higher number: batches were lost. If the engine can replay the lost batches, they are requested, and newer batches
  wait. If not, the state of the cache is unknown, and the worker's prefix index is dropped;
- a number that a replay has already delivered: a replay brings batches sooner than the publishing socket does, so this
  batch is skipped;
- a number that is not above the last published number: the engine has restarted, with an empty cache.

The first batch may have any number. Blocks stored before it are in the index only if the router predicted them.

A batch is applied in portions of `UNITS_AT_ONCE`. The rest of the batch waits for `go_on`, and newer batches wait
for the rest.

Limits: while a replay runs, `MAX_WAITING` batches or `MAX_LEFT_BYTES` wait; beyond that, the replay is given up. A
batch above `MAX_BATCH_BYTES`, or with events of less than `LEAST_EVENT_BYTES` on average, cannot be read.
`MAX_LEFT_BYTES` wait to be applied, if there is memory for them; beyond that, the index and all waiting bytes are
dropped.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.declared_metrics import Metric
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.repeated_line import RepeatedLine
from warmroute_proxy.server.engines.kv_blocks import KvBlocks, Matched
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES, BodyReservation

log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
MAX_BATCH_BYTES: Final = 4 * 2**20
"""The size of a batch with 300,000 blocks of one token each, which takes 30 ms to decode."""

LEAST_EVENT_BYTES: Final = 16
"""Below the size of the smallest event, `AllBlocksCleared`. Without this bound, a batch of 4 million empty events would
take 290 MB, and hold the loop for 0.3 s.
"""

MAX_LEFT_BYTES: Final = 16 * 2**20
BLOCKS_AT_ONCE: Final = 1_024
UNITS_AT_ONCE: Final = 4_096
"""The size of a portion, which takes 4 ms. A block counts as one unit, an event as `UNITS_OF_EVENT` more."""

UNITS_OF_EVENT: Final = 8

_TIERS: Final[dict[str | None, Tier]] = {
    None: "device",
    "GPU": "device",
    "CPU_PINNED": "host",
    "DISK": "storage",
    "EXTERNAL": "storage",
}
_ARRAYS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
"""The first bytes by which msgpack marks an array."""


class _Event(msgspec.Struct, gc=False):
    """An event of any kind. Fields that the kind lacks have defaults; unknown kinds and fields are ignored."""

    type: str
    block_hashes: list[int] = []
    parent_block_hash: int | None = None
    token_ids: msgspec.Raw = msgspec.Raw(b"\x90")
    block_size: int = 0
    medium: str | None = None
    session_id: str | None = None


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: msgspec.Raw


_decode = msgspec.msgpack.Decoder(_Batch).decode
_decode_events = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_event = msgspec.msgpack.Decoder(_Event).decode
_UNREADABLE: Final = (msgspec.DecodeError, msgspec.ValidationError, RecursionError)


class KvCounters(NamedTuple):
    """The metrics of feeds; each has the label `worker`."""

    batches: Metric = declared.KV_EVENT_BATCHES_TOTAL
    gaps: Metric = declared.KV_EVENT_GAPS_TOTAL
    replayed: Metric = declared.KV_EVENT_BATCHES_REPLAYED_TOTAL
    drops: Metric = declared.KV_INDEX_DROPS_TOTAL
    restarts: Metric = declared.KV_EVENT_RESTARTS_TOTAL
    blocks: Metric = declared.KV_BLOCKS_TOTAL


COUNTS: Final = KvCounters()


class PromptTokens(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="m"):
    """The tokens of the request that was sent to a worker with a tag. Processes send it to each other.

    `cached_tokens`: None if unknown. `answer_tokens`: those that the worker has stored behind the prompt.
    """

    cache_worker: str
    tag: str
    prompt_tokens: int
    cached_tokens: int | None
    answer_tokens: int


class KvFeed:
    def __init__(
        self,
        worker: Worker,
        router: Router,
        metrics: Metrics,
        *,
        block_size: int,
        can_replay: bool,
        memory: BodyReservation | None = None,
    ) -> None:
        """`memory`: counts the batches that wait, and nothing else; None: they are not counted."""
        self._memory = memory
        self.blocks = KvBlocks()
        self.lag_s = 0.0
        self.replaying = False
        self._worker = worker
        self._block_size = block_size
        self._can_replay = can_replay
        self._router = router
        self._metrics = metrics
        # An engine may cause each of these log lines with every batch, so their number is limited.
        lines = [RepeatedLine(log, logging.WARNING, time.monotonic) for _ in range(3)]
        self._lost, self._restarted, self._unreadable = lines
        self._next: int | None = None  # the number of the next batch; None until the first one
        self._published = -1  # number of the newest batch from the publishing socket; below `_next`
        self._waiting: deque[tuple[int, bytes]] = deque()  # number and batch
        self._waiting_bytes = 0
        self._left: deque[tuple[bytes, float]] = deque()  # batches that are not fully applied, and when they came
        self._left_bytes = 0
        self._steps: Iterator[int] | None = None  # the remaining steps of the oldest batch in `_left`

    def settled(self, ended: PromptTokens) -> None:
        """Record that a request has ended."""
        gone = self.blocks.settled(ended.tag, ended.prompt_tokens, ended.cached_tokens, ended.answer_tokens)
        if gone:
            self._router.cache_removed(self._worker.id, gone, "device")

    def live(self, number: int, payload: bytes, unix_s: float) -> int | None:
        """Take a published batch. Returns the number from which batches must be replayed, or None."""
        if self.replaying:
            self._waiting.append((number, payload))
            self._waiting_bytes += len(payload)
            too_many = len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_LEFT_BYTES
            if too_many or not self._finds_memory():
                self.replay_ended(unix_s)
            return None
        if self._next is not None and number > self._next:
            self._count(COUNTS.gaps)
            self._waiting.append((number, payload))
            self._waiting_bytes = len(payload)
            if not self._can_replay or not self._finds_memory():
                self.replay_ended(unix_s)
                return None
            self.replaying = True
            return self._next
        self._take(number, payload, unix_s)
        return None

    def replayed(self, number: int, payload: bytes, unix_s: float) -> None:
        if self.replaying and number == self._next:
            self._count(COUNTS.replayed)
            self._apply(number, payload, unix_s)

    def replay_ended(self, unix_s: float) -> None:
        """Go on after a replay that is complete, or that the engine does not answer. Missing batches are lost now."""
        waiting, self._waiting, self.replaying = self._waiting, deque(), False
        self._waiting_bytes = 0
        for number, payload in waiting:
            if self._next is not None and number > self._next:
                self._lost.write("KV events of worker %s were lost: its index is dropped", self._worker.id)
                self._count(COUNTS.drops)
                self._drop()
            self._take(number, payload, unix_s)
        if not self._left:
            self._give_back()

    def _take(self, number: int, payload: bytes, unix_s: float) -> None:
        """Apply a published batch. No batch before it may be missing."""
        by_replay = self._next is not None and self._published < number < self._next
        if number <= self._published:
            self._count(COUNTS.restarts)
            self._restarted.write(
                "worker %s numbers its KV events from the start again: it has restarted", self._worker.id
            )
            self._forget_left()
            self.blocks.clear()
            self._router.worker_restarted(self._worker.id)
        self._published = number
        if not by_replay:
            self._apply(number, payload, unix_s)

    def _drop(self) -> None:
        """Drop the index and all batches that wait to be applied, because the state of the cache is unknown."""
        self._forget_left()
        self._clear()

    def _clear(self) -> None:
        self.blocks.clear()
        self._router.cache_cleared(self._worker.id)

    def _forget_left(self) -> None:
        self._left.clear()
        self._left_bytes = 0
        self._steps = None
        self._give_back()

    def engine_restarted(self) -> None:
        """Begin anew: the cache of the engine's new process is empty, and the process numbers its batches from 0."""
        self.close()
        self.blocks.clear()
        self._next, self._published = None, -1

    def close(self) -> None:
        """Drop what waits, and give its memory back."""
        self._waiting.clear()
        self._waiting_bytes, self.replaying = 0, False
        self._forget_left()

    def _finds_memory(self) -> bool:
        """Reserve memory for the batches that wait. Returns whether there was enough."""
        size_bytes = self._left_bytes + self._waiting_bytes
        return size_bytes <= UNCOUNTED_BYTES or self._memory is None or self._memory.cover(size_bytes)

    def _give_back(self) -> None:
        if self._memory is not None and not self._waiting:
            self._memory.close()

    def _apply(self, number: int, payload: bytes, unix_s: float) -> None:
        self._next = number + 1
        self._count(COUNTS.batches)
        self._left.append((payload, unix_s))
        self._left_bytes += len(payload)
        if len(payload) > MAX_BATCH_BYTES:
            self._cannot_read(f"it has {len(payload)} bytes")
        elif self._left_bytes > MAX_LEFT_BYTES:
            self._cannot_read(f"more than {MAX_LEFT_BYTES} bytes wait")
        elif not self._finds_memory():
            self._cannot_read("there is no memory for it (body_memory_bytes)")
        elif self._steps is None:
            self.go_on()

    @property
    def is_behind(self) -> bool:
        return bool(self._left)

    def go_on(self) -> None:
        units = 0
        while self._left and units < UNITS_AT_ONCE:
            payload, unix_s = self._left[0]
            if self._steps is None:
                self._steps = self._steps_of(payload, unix_s)
            try:
                units += next(self._steps)
            except StopIteration:
                if self._left:
                    self._left.popleft()
                    self._left_bytes -= len(payload)
                    self._steps = None
                    if not self._left:
                        self._give_back()
            except _UNREADABLE as error:
                self._cannot_read(str(error))

    def _cannot_read(self, problem: str) -> None:
        self._unreadable.write("a batch of KV events of worker %s cannot be read: %s", self._worker.id, problem)
        self._count(COUNTS.drops)
        self._drop()

    def _steps_of(self, payload: bytes, unix_s: float) -> Iterator[int]:
        """Apply a batch in steps. Yields the number of units of each step."""
        batch = _decode(payload)
        self.lag_s = max(0.0, unix_s - batch.ts)
        if _length_of(batch.events) * LEAST_EVENT_BYTES > len(payload):
            raise msgspec.ValidationError("its events are too small")
        for raw in _decode_events(batch.events):
            event = _decode_event(raw)
            if event.type == "AllBlocksCleared":
                self._clear()
            elif event.medium in _TIERS:
                for piece in _pieces_of(event):
                    self._apply_one(piece, _TIERS[event.medium])
                    yield len(piece.block_hashes)
            yield UNITS_OF_EVENT

    def _apply_one(self, event: _Event, tier: Tier) -> None:
        worker, router = self._worker, self._router
        if event.type == "BlockStored":
            matched = self.blocks.stored(
                event.block_hashes,
                event.parent_block_hash,
                event.session_id,
                event.block_size or self._block_size,
                tier,
                pairs=_holds_arrays(bytes(event.token_ids)),
            )
            router.cache_stored(worker.id, matched.keys, tier)
            self._count_blocks("stored", event, matched)
        elif event.type == "BlockRemoved":
            matched = self.blocks.removed(event.block_hashes, tier)
            router.cache_removed(worker.id, matched.keys, tier)
            self._count_blocks("removed", event, matched)

    def _count(self, metric: Metric) -> None:
        self._metrics.add(metric, 1, (("worker", self._worker.id),))

    def _count_blocks(self, what: str, event: _Event, matched: Matched) -> None:
        for known, blocks in (("yes", matched.known), ("no", len(event.block_hashes) - matched.known)):
            if blocks:
                self._metrics.add(
                    COUNTS.blocks, blocks, (("worker", self._worker.id), ("event", what), ("joined", known))
                )


def _pieces_of(event: _Event) -> Iterator[_Event]:
    """Split an event with many blocks into consecutive events of `BLOCKS_AT_ONCE` blocks."""
    hashes = event.block_hashes
    if len(hashes) <= BLOCKS_AT_ONCE:
        yield event
        return
    parent = event.parent_block_hash
    for at in range(0, len(hashes), BLOCKS_AT_ONCE):
        some = hashes[at : at + BLOCKS_AT_ONCE]
        yield msgspec.structs.replace(event, block_hashes=some, parent_block_hash=parent)
        parent = some[-1]


def _length_of(array: msgspec.Raw) -> int:
    """How many items a msgpack array states that it has; 0 if it is not an array."""
    head = bytes(memoryview(array)[:5])
    if head[0] not in _ARRAYS:
        return 0
    return head[0] & 0x0F if head[0] < 0xDC else int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5], "big")


def _holds_arrays(token_ids: bytes) -> bool:
    """Whether the first item of a msgpack array is itself an array, so that token ids are pairs of tokens."""
    start = {0xDC: 3, 0xDD: 5}.get(token_ids[0], 1) if token_ids else 0
    return len(token_ids) > start and token_ids[start] in _ARRAYS
