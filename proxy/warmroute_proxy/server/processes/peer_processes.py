"""Exchanges updates and reports with the other processes of this proxy through shared memory.

A process sends these updates:

- the events of its router (`core/replicas/replica.py`);
- the tag of each prompt that it sends, so that each process can match the KV events of all prompts;
- the newest requests of conversations without a session key;
- operators' drain orders, and the health of engines.

The updates that come within `SEND_WITHIN_S` go in one message. Updates are applied before each decision and each
look-up of a conversation, and in each sweep.

Each process has a ring buffer of messages. A process that replaces a dead one (its predecessor) reads all messages that
are still in the rings, including its predecessor's. So it knows which prefixes engines got recently. The predecessor's
open requests no longer count as load.

Each process publishes a report of itself in each sweep, mainly its metrics. Any process can answer an operator for all
processes with the sum of the reports. The report of a killed process stays, and the process that replaces it continues
its counters, so sums never fall. Once a process has dropped a worker, no page has that worker's counters. What a killed
process has counted since its last sweep is lost from the metrics, but not from the ledger.
"""

import logging
import os
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from warmroute.contract.conversations import Conversations, Newest
from warmroute_proxy.core.replicas.event_stream import Events
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.replica import Replica
from warmroute_proxy.server.base.metrics import Metrics, State
from warmroute_proxy.server.base.repeated_line import RepeatedLine
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.kv_feed import PromptTokens
from warmroute_proxy.server.engines.watching import Raised
from warmroute_proxy.server.processes.shared_memory import LaneReader, SharedMemory

SEND_WITHIN_S: Final = 0.002

log = logging.getLogger(__name__)


class TagSent(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="t"):
    """A request was sent with a tag that its KV events will name. `number`: the router's number of the request."""

    number: int
    cache_worker: str
    tag: str


class DrainOrder(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="d"):
    """An operator's order to drain an engine, or to let it work again."""

    engine: str
    draining: bool


class Health(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="h"):
    """The status of an engine's `/health`; None if a process has just requested it, 0 if no answer came."""

    engine: str
    url: str
    status: int | None


class Continued(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="n"):
    """The newest request of a conversation whose client names no session. Other proxies get it, too, so its form
    belongs to a version of `regions.versions`.
    """

    newest: Newest


Update = Event | TagSent | PromptTokens | DrainOrder | Health | Continued | Events
"""`Events` is a message that another proxy of this region has sent to one of the processes."""


class Message(msgspec.Struct, gc=False, array_like=True):
    """Updates from one start (generation) of a process. `at_s`: when they were sent, by the monotonic clock, which all
    processes share.
    """

    generation: int
    at_s: float
    updates: list[Update]


class Gauges(NamedTuple):
    """The present state of a process, in numbers. Each field has the name of its gauge."""

    turns_live: int
    queue_requests: int
    queue_bytes: int
    kept_prompts: int
    kept_prompt_bytes: int
    ledger_rows_waiting: int
    body_memory_bytes: int
    announcements_waiting: int
    queue_memory_requests: int = 0
    queue_memory_missing_tokens: int = 0
    tokens_in_flight: int = 0
    queue_begin_requests: int = 0
    resident_memory_bytes: int = 0
    cpu_seconds: float = 0.0


class ProcessReport(msgspec.Struct, gc=False, array_like=True):
    """The report of a process on itself. `generation`: which start of the process wrote it."""

    generation: int
    pid: int
    gauges: Gauges
    connections: dict[str, int]
    """Open connections by engine."""

    drained: list[str]
    """The engines that drain by an operator's order."""

    metrics: State
    config: str = ""
    """The digest of the config file that the process uses."""

    troubles: tuple[str, ...] = ()
    """The names of the troubles that the process reports at `/ready`."""

    conditions: list[Raised] = []
    """The conditions that hold by what the process observes."""


class PeerProcesses:
    """The link to the other processes of this proxy. All methods are called in the event loop."""

    def __init__(
        self,
        shared_memory: SharedMemory,
        number: int,
        clock: Callable[[], float],
        loop: AbstractEventLoop,
        on_shown: Callable[[Events], None] | None = None,
    ) -> None:
        """`on_shown` applies a message that another process of this proxy got from another proxy."""
        lanes = shared_memory.lanes
        self.number = number
        self._on_shown = on_shown
        self.config_digest = ""
        """The digest of the config file that this process uses."""

        self._lanes = lanes
        self._lane = lanes[number]
        self._generation = self._lane.generation
        self._clock = clock
        self._loop = loop
        self._too_long = RepeatedLine(log, logging.ERROR, clock)
        self._outbox: list[Update] = []  # updates wait here for at most SEND_WITHIN_S
        self._readers = {at: LaneReader(lane) for at, lane in enumerate(lanes) if at != number}
        self._generations = dict.fromkeys(self._readers, 0)  # the last applied generation of each process
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Message).decode
        self._decode_report = msgspec.msgpack.Decoder(ProcessReport).decode
        self._replica: Replica
        self._engines: Engines
        self._conversations: Conversations

    def start(self, replica: Replica, engines: Engines, metrics: Metrics, conversations: Conversations) -> None:
        """Apply the updates in the rings, and take over operators' drain orders and the predecessor's counters."""
        self._replica, self._engines, self._conversations = replica, engines, conversations
        engines.watching.of_others = self._conditions
        now_s = self._clock()
        self._apply_from(self.number, LaneReader(self._lane))
        replica.forget(self.number, now_s)
        self.apply_updates()
        before = self._report_of(self.number)
        if before is not None:
            metrics.take_over(before.metrics)
        for report in filter(self.alive, self.reports()):
            for engine in report.drained:
                self._apply_drain(DrainOrder(engine, draining=True))

    # Send

    def send(self, update: Update, now_s: float = 0.0) -> None:  # noqa: ARG002 - the router calls it with the time
        if not self._outbox:
            self._loop.call_later(SEND_WITHIN_S, self._send_outbox)
        self._outbox.append(update)

    def send_tag(self, cache_worker: str, tag: str) -> None:
        self.send(TagSent(self._replica.last_number, cache_worker, tag))

    def send_newest(self, newest: Newest) -> None:
        """Send a conversation's newest request, which this process has read."""
        self.send(Continued(newest))

    def send_drain(self, engine: str, draining: bool) -> None:
        """Send an operator's order to drain an engine, or to let it work again."""
        self.send(DrainOrder(engine, draining))

    def send_health(self, engine: str, url: str, status: int | None) -> None:
        """Send the status of an engine's `/health`; None if this process requests it now, so that others need not."""
        self.send(Health(engine, url, status))

    def show(self, message: Events) -> None:
        """Pass another proxy's message to the other processes at once, before that proxy's next message can come."""
        self._outbox.append(message)
        self._send_outbox()

    def publish(self, metrics: Metrics, gauges: Gauges, troubles: tuple[str, ...] = ()) -> None:
        """Publish this process' report, and apply the updates of other processes. Called in each sweep."""
        engines = self._engines
        connections = {engine.config.id: engine.upstream.open for engine in engines.by_id.values()}
        drained = list(engines.drains.by_operator())
        report = ProcessReport(
            self._generation,
            os.getpid(),
            gauges,
            connections,
            drained,
            metrics.state(),
            self.config_digest,
            troubles,
            engines.watching.own(),
        )
        if not self._lane.publish(self._encode(report)):
            self._too_long.write("the metrics of this process exceed its shared memory: others do not get them")
        self.apply_updates()

    def _send_outbox(self) -> None:
        outbox, self._outbox = self._outbox, []
        if not outbox:
            return
        if not self._lane.append(self._encode(Message(self._generation, self._clock(), outbox))):
            for update in outbox:  # the message was too long: send each update in a separate message
                if not self._lane.append(self._encode(Message(self._generation, self._clock(), [update]))):
                    log.warning("an update of type %s is too long for the other processes", type(update).__name__)

    # Apply

    def apply_updates(self) -> None:
        for number, reader in self._readers.items():
            if reader.behind or reader.lane.generation != self._generations[number]:
                try:
                    self._apply_from(number, reader)
                except Exception as error:  # a bug here must not fail the request that waits for a decision
                    log.error("applying the updates of process %d failed: %s", number, type(error).__name__)

    def reports(self) -> list[ProcessReport]:
        """The last reports of all other processes, including dead ones."""
        return [report for number in self._readers if (report := self._report_of(number)) is not None]

    def alive(self, report: ProcessReport) -> bool:
        return any(lane.generation == report.generation for lane in self._lanes)

    def _conditions(self) -> list[Raised]:
        return [each for report in filter(self.alive, self.reports()) for each in report.conditions]

    def other_configs(self) -> list[str]:
        """The config digest of each other process that runs; empty for a process that has not reported yet."""
        found = []
        for number, reader in self._readers.items():
            generation = reader.lane.generation
            if generation:
                report = self._report_of(number)
                found.append(report.config if report is not None and report.generation == generation else "")
        return found

    def _apply_from(self, number: int, reader: LaneReader) -> None:
        replica = self._replica
        for payload in reader.read():
            message = self._decode(payload)
            if reader.missed or self._generations.get(number, message.generation) != message.generation:
                replica.forget(number, self._clock())
                reader.missed = False
            if number != self.number:
                self._generations[number] = message.generation
            for update in message.updates:
                self._apply(number, update, message.at_s)
        if number != self.number and reader.lane.generation != self._generations[number]:
            replica.forget(number, self._clock())
            self._generations[number] = reader.lane.generation

    def _apply(self, number: int, update: Update, at_s: float) -> None:
        if isinstance(update, TagSent):
            ticket = self._replica.ticket_of(number, update.number)
            if ticket is not None:
                self._engines.apply_tag(update.cache_worker, update.tag, ticket.chain)
        elif isinstance(update, PromptTokens):
            self._engines.apply_prompt_tokens(update)
        elif isinstance(update, DrainOrder):
            self._apply_drain(update)
        elif isinstance(update, Continued):
            self._conversations.observe(update.newest)
        elif isinstance(update, Events):
            if self._on_shown is not None:
                self._on_shown(update)
        elif isinstance(update, Health):
            self._engines.apply_health(update.engine, update.url, update.status, at_s)
        else:
            self._replica.apply(number, update, at_s)

    def _apply_drain(self, order: DrainOrder) -> None:
        if order.engine in self._engines.by_id:
            self._engines.drain(order.engine, "operator", order.draining, self._replica.router)

    def _report_of(self, number: int) -> ProcessReport | None:
        payload = self._lanes[number].report()
        return self._decode_report(payload) if payload is not None else None


def summed_metrics(own: Metrics, reports: list[ProcessReport]) -> Metrics:
    """Add up the counters of this process and of the reports. What all of them see counts once. Exemplars are only
    from this process.
    """
    total = Metrics()
    for state in (own.state(), *(report.metrics for report in reports)):
        total.take_over(state, beside=True)
    total.take_exemplars(own)
    return total
