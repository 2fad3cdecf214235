"""One process among several of a proxy: what it tells the others over the board, and what it hears from them.

What a router does (`core/replicas/peer_router.py`), which tag a prompt was sent under (so that each process joins the
KV events of all of them), and what an operator says of an engine is told at most `TELL_WITHIN_S` later, all that has
come together in one message. It is heard before each decision, and in each sweep by a process that decides nothing.

A process that starts again reads what is still in the rings of all, its predecessor's too, and so knows the prefixes
that were sent lately. What its predecessor had under way is load no more.

What a process says of itself, its metrics foremost, is a row of the board, written in each sweep. Any process answers
an operator for all by the sum of the rows. One that was killed has its counters kept in its row, and its successor goes
on counting from there: sums never fall. What it counted after its last sweep is lost (from metrics, not from the
ledger).
"""

import logging
import os
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.peer_router import PeerRouter
from warmroute_proxy.server.base.metrics import Metrics, State
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.processes.shared_memory import LaneReader, SharedMemory

TELL_WITHIN_S: Final = 0.002

log = logging.getLogger(__name__)


class Tagged(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="t"):
    """The request with this number was sent under a tag that its KV events will name."""

    number: int
    cache_worker: str
    tag: str


class Measured(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="m"):
    """The prompt of a tag has so many tokens."""

    cache_worker: str
    tag: str
    prompt_tokens: int


class Drained(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="d"):
    """An operator drains an engine, or lets it work again."""

    engine: str
    draining: bool


class Asked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="h"):
    """An engine is asked by `/health` (status None), or has answered; 0: it has not."""

    engine: str
    status: int | None


Told = Event | Tagged | Measured | Drained | Asked


class Message(msgspec.Struct, gc=False, array_like=True):
    """What one life of a process has told at a time of the monotonic clock, which all processes share."""

    life: int
    at_s: float
    told: list[Told]


class Holding(NamedTuple):
    """What a process has in its hands; each a gauge of its name."""

    turns_live: int
    queue_requests: int
    queue_bytes: int
    kept_prompts: int
    kept_prompt_bytes: int
    ledger_rows_waiting: int


class Row(msgspec.Struct, gc=False, array_like=True):
    """What one life of a process says of itself."""

    life: int
    pid: int
    holds: Holding
    connections: dict[str, int]
    drained: list[str]
    metrics: State


class PeerProcesses:
    """The other processes, as one of them sees them. All of it in the event loop."""

    def __init__(self, board: SharedMemory, number: int, clock: Callable[[], float], loop: AbstractEventLoop) -> None:
        self.number = number
        self._lanes = board.lanes
        self._lane = board.lanes[number]
        self._life = self._lane.life
        self._clock = clock
        self._loop = loop
        self._outbox: list[Told] = []  # for TELL_WITHIN_S at most
        self._readers = {at: LaneReader(lane) for at, lane in enumerate(board.lanes) if at != number}
        self._lives = dict.fromkeys(self._readers, 0)  # of which something was heard
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Message).decode
        self._decode_row = msgspec.msgpack.Decoder(Row).decode
        self._router: PeerRouter
        self._engines: Engines

    def start(self, router: PeerRouter, engines: Engines, metrics: Metrics) -> None:
        """Hear what there is, take over what the predecessor has counted, and what operators have said."""
        self._router, self._engines = router, engines
        engines.share(self)
        now_s = self._clock()
        self._hear(self.number, LaneReader(self._lane))
        router.forget(self.number, now_s)
        self.listen()
        before = self._row(self.number)
        if before is not None:
            metrics.take_over(before.metrics)
        for row in self._rows_alive():
            for engine in row.drained:
                self._drain(Drained(engine, draining=True))

    # What this one tells

    def tell(self, told: Told, now_s: float = 0.0) -> None:  # noqa: ARG002 - as a router calls it
        """Something for all the others to hear."""
        if not self._outbox:
            self._loop.call_later(TELL_WITHIN_S, self._tell_all)
        self._outbox.append(told)

    def tagged(self, cache_worker: str, tag: str) -> None:
        """The request that the router sent last went out under a tag."""
        self.tell(Tagged(self._router.last_number, cache_worker, tag))

    def measured(self, cache_worker: str, tag: str, prompt_tokens: int) -> None:
        """The prompt of a tag has so many tokens."""
        self.tell(Measured(cache_worker, tag, prompt_tokens))

    def drained(self, engine: str, draining: bool) -> None:
        """An operator has told this process to drain an engine, or to let it work again."""
        self.tell(Drained(engine, draining))

    def asked(self, engine: str, status: int | None) -> None:
        """This process asks an engine by `/health`, which the others then need not; or it has answered."""
        self.tell(Asked(engine, status))

    def publish(self, metrics: Metrics, holds: Holding) -> None:
        """Write this process' row, and hear the others; in each sweep."""
        engines = self._engines
        connections = {engine.config.id: engine.upstream.open for engine in engines.by_id.values()}
        drained = list(engines.drains.by_operator())
        row = Row(self._life, os.getpid(), holds, connections, drained, metrics.state())
        if not self._lane.publish(self._encode(row)):
            log.error("the metrics of this process are too many for the board: others do not see them")
        self.listen()

    # What the others tell

    def listen(self) -> None:
        """Hear what is new."""
        for number, reader in self._readers.items():
            if reader.behind or reader.lane.life != self._lives[number]:
                try:
                    self._hear(number, reader)
                except Exception as error:  # an error of ours must not end the request that waits for a decision
                    log.error("hearing process %d failed: %s", number, type(error).__name__)

    def rows(self) -> list[Row]:
        """What all others say of themselves, those that died included."""
        return [row for number in self._readers if (row := self._row(number)) is not None]

    def alive(self, row: Row) -> bool:
        """Whether the process that wrote a row lives."""
        return any(lane.life == row.life for lane in self._lanes)

    def _hear(self, number: int, reader: LaneReader) -> None:
        router = self._router
        for payload in reader.read():
            message = self._decode(payload)
            if reader.missed or self._lives.get(number, message.life) != message.life:
                router.forget(number, self._clock())
                reader.missed = False
            if number != self.number:
                self._lives[number] = message.life
            for told in message.told:
                if isinstance(told, Tagged):
                    ticket = router.ticket_of(number, told.number)
                    if ticket is not None:
                        self._engines.expect(told.cache_worker, told.tag, ticket.chain)
                elif isinstance(told, Measured):
                    self._engines.measured(told.cache_worker, told.tag, told.prompt_tokens)
                elif isinstance(told, Drained):
                    self._drain(told)
                elif isinstance(told, Asked):
                    self._engines.heard_health(told.engine, told.status, message.at_s)
                else:
                    router.apply(number, told, message.at_s)
        if number != self.number and reader.lane.life != self._lives[number]:
            router.forget(number, self._clock())
            self._lives[number] = reader.lane.life

    def _drain(self, told: Drained) -> None:
        if told.engine in self._engines.by_id:
            self._engines.drain(told.engine, "operator", told.draining, self._router)

    def _tell_all(self) -> None:
        outbox, self._outbox = self._outbox, []
        if not self._lane.tell(self._encode(Message(self._life, self._clock(), outbox))):
            for told in outbox:  # each by itself: a message has a limit
                if not self._lane.tell(self._encode(Message(self._life, self._clock(), [told]))):
                    log.warning("a %s is too long for the other processes to hear of", type(told).__name__)

    def _row(self, number: int) -> Row | None:
        text = self._lanes[number].row()
        return self._decode_row(text) if text is not None else None

    def _rows_alive(self) -> list[Row]:
        return [row for row in self.rows() if self.alive(row)]


def share_metrics(own: Metrics, rows: list[Row]) -> Metrics:
    """The sums of this process' counters and those of the others."""
    total = Metrics()
    for state in (own.state(), *(row.metrics for row in rows)):
        total.take_over(state)
    return total
