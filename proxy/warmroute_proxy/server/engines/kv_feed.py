"""What one worker publishes of its cache, in order: batches of KV events in, calls of the router out. No sockets here.

A batch is msgpack, `[time, events, rank]`, and its events are maps. Batches are numbered, and the numbers say what the
connection does not:

- the next one: the batch is applied;
- a later one: batches were lost. They are asked for, if the engine replays; what comes meanwhile waits. What cannot
  be had is a gap, and with it nobody knows what the worker has: its index is dropped;
- one that a replay has given already: the two sockets are not in step, it is passed over;
- one that is not above the last that was published: the engine began anew, with an empty cache.

The first batch that is seen may have any number: what was stored before is in the index by prediction, or not at all.

Limits: `MAX_WAITING` batches wait for a replay; with more it is given up.
"""

import logging
from collections import deque
from typing import Final, NamedTuple

import msgspec

from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.kv_blocks import Joined, KvBlocks

log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000

_TIERS: Final[dict[str | None, Tier]] = {
    None: "device",
    "GPU": "device",
    "CPU_PINNED": "host",
    "DISK": "storage",
    "EXTERNAL": "storage",
}
_ARRAYS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
"""First bytes of an array in msgpack."""


class _Event(msgspec.Struct, gc=False):
    """All kinds of events in one: fields of other kinds keep their defaults, kinds and fields to come are ignored."""

    type: str
    block_hashes: list[int] = []
    parent_block_hash: int | None = None
    token_ids: msgspec.Raw = msgspec.Raw(b"\x90")
    block_size: int = 0
    medium: str | None = None
    session_id: str | None = None


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_Event]


_decode = msgspec.msgpack.Decoder(_Batch).decode


class Counts(NamedTuple):
    """Names of the counters, each labelled by worker."""

    batches: str = "warmroute_kv_event_batches_total"
    gaps: str = "warmroute_kv_event_gaps_total"
    replayed: str = "warmroute_kv_event_batches_replayed_total"
    drops: str = "warmroute_kv_index_drops_total"
    restarts: str = "warmroute_kv_event_restarts_total"
    blocks: str = "warmroute_kv_blocks_total"


COUNTS: Final = Counts()


class KvFeed:
    """What one worker publishes, in order: batches in, calls of the router out. Without sockets."""

    def __init__(self, worker: Worker, router: Router, metrics: Metrics, *, block_size: int, can_replay: bool) -> None:
        self.blocks = KvBlocks()
        self.lag_s = 0.0
        self.replaying = False
        self._worker = worker
        self._block_size = block_size
        self._can_replay = can_replay
        self._router = router
        self._metrics = metrics
        self._next: int | None = None  # nothing was seen yet: whatever comes is the first
        self._published = -1  # the last that came by itself, not by a replay; below `_next`
        self._waiting: deque[tuple[int, bytes]] = deque()

    def settled(self, tag: str, prompt_tokens: int) -> None:
        """The turn with this tag has ended, and its prompt has so many tokens."""
        gone = self.blocks.settled(tag, prompt_tokens)
        if gone:
            self._router.cache_removed(self._worker.id, gone, "device")

    def live(self, number: int, payload: bytes, unix_s: float) -> int | None:
        """A published batch. Returns from where on a replay is needed, None if none is."""
        if self.replaying:
            self._waiting.append((number, payload))
            if len(self._waiting) > MAX_WAITING:
                self.replay_ended(unix_s)
            return None
        if self._next is not None and number > self._next:
            self._count(COUNTS.gaps)
            self._waiting.append((number, payload))
            if not self._can_replay:
                self.replay_ended(unix_s)
                return None
            self.replaying = True
            return self._next
        self._take(number, payload, unix_s)
        return None

    def replayed(self, number: int, payload: bytes, unix_s: float) -> None:
        """A batch from the replay socket."""
        if self.replaying and number == self._next:
            self._count(COUNTS.replayed)
            self._apply(number, payload, unix_s)

    def replay_ended(self, unix_s: float) -> None:
        """The replay socket has given what it has, or it does not answer: what is missing now cannot be had."""
        waiting, self._waiting, self.replaying = self._waiting, deque(), False
        for number, payload in waiting:
            if self._next is not None and number > self._next:
                log.warning("KV events of worker %s were lost: its index is dropped", self._worker.id)
                self._count(COUNTS.drops)
                self._drop()
            self._take(number, payload, unix_s)

    def _take(self, number: int, payload: bytes, unix_s: float) -> None:
        """A published batch before which nothing is missing."""
        by_replay = self._next is not None and self._published < number < self._next
        if number <= self._published:
            self._count(COUNTS.restarts)
            log.warning("worker %s publishes KV events from the start again: it has begun anew", self._worker.id)
            self.blocks.clear()
            self._router.worker_restarted(self._worker.id)
        self._published = number
        if not by_replay:
            self._apply(number, payload, unix_s)

    def _drop(self) -> None:
        self.blocks.clear()
        self._router.cache_cleared(self._worker.id)

    def _apply(self, number: int, payload: bytes, unix_s: float) -> None:
        self._next = number + 1
        self._count(COUNTS.batches)
        try:
            batch = _decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            log.warning("a batch of KV events of worker %s cannot be read: %s", self._worker.id, error)
            self._count(COUNTS.drops)
            self._drop()
            return
        self.lag_s = max(0.0, unix_s - batch.ts)
        for event in batch.events:
            if event.type == "AllBlocksCleared":
                self._drop()
            elif event.medium in _TIERS:
                self._apply_one(event, _TIERS[event.medium])

    def _apply_one(self, event: _Event, tier: Tier) -> None:
        worker, router = self._worker, self._router
        if event.type == "BlockStored":
            joined = self.blocks.stored(
                event.block_hashes,
                event.parent_block_hash,
                event.session_id,
                event.block_size or self._block_size,
                tier,
                pairs=_holds_arrays(bytes(event.token_ids)),
            )
            router.cache_stored(worker.id, joined.keys, tier)
            self._count_blocks("stored", event, joined)
        elif event.type == "BlockRemoved":
            joined = self.blocks.removed(event.block_hashes, tier)
            router.cache_removed(worker.id, joined.keys, tier)
            self._count_blocks("removed", event, joined)

    def _count(self, name: str) -> None:
        self._metrics.add(name, 1, (("worker", self._worker.id),))

    def _count_blocks(self, what: str, event: _Event, joined: Joined) -> None:
        for known, blocks in (("yes", joined.known), ("no", len(event.block_hashes) - joined.known)):
            if blocks:
                self._metrics.add(
                    COUNTS.blocks, blocks, (("worker", self._worker.id), ("event", what), ("joined", known))
                )


def _holds_arrays(token_ids: bytes) -> bool:
    """Whether the first item of an array in msgpack is an array: a pair of tokens."""
    start = {0xDC: 3, 0xDD: 5}.get(token_ids[0], 1) if token_ids else 0
    return len(token_ids) > start and token_ids[start] in _ARRAYS
