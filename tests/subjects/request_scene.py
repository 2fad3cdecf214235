"""A request between scripted neighbours: what steps of its life a test wants are made to happen, in any order.

The request, its attempt, settlement, deadlines and the router are the real ones. Scripted, because they wait or decide:
the engine's connection, the client's exchange, the ledger, admission and the other region.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from warmroute.contract.changes import NO_CHANGES
from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.price_books import PriceBook
from warmroute_proxy.core.accounting.receipt import ServedBy
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.messages import USER
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.quota import UsedTokens
from warmroute_proxy.core.queue.retry_budget import RetryBudget
from warmroute_proxy.server.base.config import Limits, ModelConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.engine import RefusalLog
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.intake.body import Body
from warmroute_proxy.server.intake.parsed_request import ParsedRequest, ReadRequest
from warmroute_proxy.server.intake.prefix_breaks import NO_PREFIX_BREAKS
from warmroute_proxy.server.intake.standing import NO_STANDING
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.request.client_answer import AnswerHeaders
from warmroute_proxy.server.request.deadlines import Deadlines
from warmroute_proxy.server.request.faults import Faults
from warmroute_proxy.server.request.inference_request import InferenceRequest
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.request.placing import Placing
from warmroute_proxy.server.request.request_metrics import RequestMetrics
from warmroute_proxy.server.request.request_path import RequestPath
from warmroute_proxy.server.request.settlement import Settlement
from warmroute_proxy.server.stores.prices import Prices

LIMITS = Limits(total_timeout_s=3600.0, first_token_timeout_s=600.0)
BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
CONTENT = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":10,"completion_tokens":1}}'
EVENTS = {"content-type": "text/event-stream"}
ROUTING = RoutingRequest("m", 1, 1, False, None, Chain([1], [40]), 0, 1, 100, None, None, True)


class Client(Exchange):
    """A client that reads whatever comes."""

    def __init__(self) -> None:
        self.request = Request(0.0, "POST", "/v1/chat/completions")
        self.request.body = BODY
        self.ends = 0
        self.started = self.ended = False

    def _end(self) -> None:
        if not self.ended:
            self.started = self.ended = True
            self.on_gone = self.on_pause = None
            self.ends += 1

    def respond(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        self._end()

    def answer(self, lines: bytes, body: bytes) -> None:
        self._end()

    def start(self, status: int, headers: Iterable[tuple[str, str]], data: bytes = b"") -> None:
        assert not self.started
        self.started = True

    def write(self, data: bytes) -> None: ...

    def end(self, data: bytes = b"") -> None:
        self._end()

    def abort(self, data: bytes = b"") -> None:
        self._end()

    def leave(self) -> None:
        """Hang up."""
        self.ended = True
        gone, self.on_gone, self.on_pause = self.on_gone, None, None
        if gone is not None:
            gone()


class Upstream:
    """Connections whose other side is the test."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.legs: list[Leg] = []

    def send_with(self, _head: bytes, _body: object, leg: Leg) -> None:
        leg.sent = True
        self.legs.append(leg)


class Engine:
    """An engine that does what the test does with its legs."""

    is_sglang = True
    refusals = RefusalLog()
    unsupported: Mapping[tuple[str, str], frozenset[str]] = {}
    info = SimpleNamespace(dp_size=1, page_tokens=1, bootstrap_port=1, priority_sign=0)

    def __init__(self, worker: Worker) -> None:
        self.config = SimpleNamespace(kind="sglang", bootstrap_host="h")
        self.upstream = Upstream()
        self.worker = worker

    def head(self, _path: str, _headers: str, _session: str | None = None) -> bytes:
        return b""

    def workers(self) -> list[Worker]:
        return [self.worker]

    def abort(self, _rid: str) -> None: ...


def _nothing(*_: object) -> None: ...


class Engines:
    """One engine that does all, or a pair."""

    lost: frozenset[str] = frozenset()
    watching = SimpleNamespace(
        answers=Counter(), answered_nothing=_nothing, miscounted=_nothing, handed_over=_nothing,
        not_handed_over=_nothing, lost=_nothing,
    )  # fmt: skip

    def __init__(self, scene: "Scene", roles: Iterable[Any]) -> None:
        self.by_id = {role: Engine(Worker(role, role, 0, role)) for role in roles}
        self.ids = SimpleNamespace(rid=scene.number, receipt=scene.number, bootstrap_room=lambda *_: 1)
        self.clock = lambda: scene.now

    def of(self, worker: Worker) -> Engine:
        return self.by_id[worker.engine]

    def workers(self) -> list[Worker]:
        return [engine.worker for engine in self.by_id.values()]

    def split(self) -> frozenset[str]:
        return frozenset()

    def tag(self, *_: object) -> bool:
        return False

    def settled(self, *_: object) -> None: ...

    def why_unavailable(self, _: str) -> str:
        return ""

    def served_by(self, decision: Decision) -> tuple[ServedBy, ...]:
        return tuple(ServedBy(w.id, w.dp_rank, w.role) for w in decision.workers)


class Scene:
    """A request, and all that can happen to it."""

    def __init__(self, roles: Iterable[str] = ("aggregated",), *, several: bool = False, stream: bool = True) -> None:
        self.now = 1.0
        self.numbers = 0
        self.place: str = "here"
        """What the next placement comes to: here, queue, forward, refuse."""
        self.journal_works = True
        self.rows: list[Callable[[JournalError | None], None]] = []  # to be written
        self.entries: list[Entry] = []  # the settled ones
        self.unanswered = 0  # how often it was noted to be left without an answer
        self.forwarded: tuple[Callable[[str], None], Callable[[UsedTokens | None], None]] | None = None
        self.client = Client()
        self.engines = Engines(self, roles)
        self.router = Router("east", self.engines.workers(), [])
        self.open_requests = OpenRequests()
        admission: Any = self
        self.queue = SimpleNamespace(requests=0, memory_wait_s=0.0)
        self.prices = Prices([ModelConfig("m", (), (PriceBook(Rates(1, 1, 1)),), None)], lambda: 1.0)
        self.retries = RetryBudget()
        self.limits = SimpleNamespace(sent_headers=lambda _parsed: ())
        engines: Any = self.engines
        ledger: Any = SimpleNamespace(open=self._open_row, settle=self._settle_row, earlier_turns={})
        re_prefills: Any = SimpleNamespace(min_bytes=1 << 30)
        alone: Any = SimpleNamespace(region="east", active=False)
        self.metrics = Metrics()
        metrics, router = RequestMetrics(self.metrics), cast("Router", _Places(self))
        self.faults = faults = Faults(router, engines, self.open_requests, metrics)
        self.path = RequestPath(
            open_requests=self.open_requests,
            placing=Placing(router, engines, admission, faults, metrics),
            admission=admission,
            faults=faults,
            forwarding=cast("Any", SimpleNamespace(begin=self._forward)),
            engines=engines,
            deadlines=Deadlines(LIMITS, engines),
            settlement=Settlement(router, engines, admission, ledger, metrics, alone, lambda: 1.0),
            re_prefills=re_prefills,
            answer_headers=AnswerHeaders("east", admission.limits),
            metrics=metrics,
            max_answer_bytes=1 << 20,
        )
        self.several, self.stream = several, stream
        self.prefix_breaks = NO_PREFIX_BREAKS
        self.request = self.asked(ROUTING, self.client)

    def asked(self, routing: RoutingRequest, client: Client) -> InferenceRequest:
        """Another request."""
        return InferenceRequest(self.path, client, _read(self, routing), self.number())

    @property
    def settled(self) -> int:
        return len(self.entries)

    def number(self) -> str:
        """Any id, each once."""
        self.numbers += 1
        return f"{self.numbers:032x}"

    def leg(self, role: str = "") -> Leg:
        """The newest leg to an engine."""
        name = role or ("aggregated" if "aggregated" in self.engines.by_id else "decode")
        return self.engines.by_id[name].upstream.legs[-1]

    # -- admission, as far as a request knows it

    def enter(self, request: Any, decision: Decision, _now_s: float) -> Decision | None:
        if self.place == "queue":
            request.waiter = cast("Any", object())
            return None
        if self.place == "turn away":
            request.refused(Refusal(429, "busy"))
            return None
        return decision

    def leave(self, request: Any) -> None:
        request.waiter = None

    def freed(self) -> None: ...
    def ended(self, request: Any, tokens: int) -> None: ...
    def cancel(self, request: Any) -> None: ...

    # -- the ledger and the other region

    def _open_row(self, _entry: Any) -> None:
        if not self.journal_works:
            raise JournalError("the disk is full")

    def _settle_row(self, entry: Entry, on_written: Callable[[JournalError | None], None]) -> None:
        self.entries.append(entry)
        self.rows.append(on_written)

    def _forward(self, *begun: Any) -> None:
        *_, on_failure, _on_begin, on_end = begun
        self.forwarded = on_failure, on_end

    # -- what happens

    def begin(self, place: str = "here") -> None:
        self.place = place
        self.request.begin()

    def admit(self, place: str = "here") -> None:
        self.place = place
        request = self.request
        request.waiter = None
        request.admitted(_Places(self).place(request.routing, self.now, frozenset()))

    def turn_away(self) -> None:
        self.request.waiter = None
        self.request.refused(Refusal(429, "busy"))

    def home_fails(self, place: str = "here") -> None:
        assert self.forwarded is not None
        self.place = place
        self.forwarded[0]("region:west")

    def home_ends(self) -> None:
        assert self.forwarded is not None
        self.forwarded[1](None)
        self.client._end()

    def content(self) -> None:
        leg = self.leg()
        if not leg.head_seen:
            leg.head(200, EVENTS)
        leg.body(CONTENT)

    def complete(self) -> None:
        leg = self.leg()
        if not leg.streamed:
            leg.whole([], WHOLE, self.now)
            return
        if not leg.head_seen:
            leg.head(200, EVENTS)
        leg.body(USAGE + DONE)

    def prefill(self) -> None:
        self.leg("prefill").whole([], b'{"usage":{"prompt_tokens":10}}', self.now)

    def engine_fails(self, place: str = "refuse") -> None:
        """The connection breaks; `place`: what a retry comes to."""
        self.place = place
        self.leg().fail(Cause.BROKEN, "the connection to the engine broke")

    def give_up_usage(self) -> None:
        self.request.give_up_usage()

    def write_row(self, failure: JournalError | None = None) -> None:
        self.rows.pop(0)(failure)


class _Places:
    """The router, with placements as the scene wants them."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scene.router, name)

    def place(self, routing: RoutingRequest, now_s: float, _exclude: frozenset[str]) -> Decision:
        scene = self._scene
        if scene.place == "refuse":
            raise NoWorker(routing.model, served=True)
        decision = scene.router.place(routing, now_s)
        if scene.place == "forward":
            return msgspec.structs.replace(decision, kind="forward", region="west")
        return decision

    def has_capacity(self, *_: object) -> bool:
        return self._scene.place not in {"queue", "turn away"}

    def full(self, _model: str) -> frozenset[str]:
        return frozenset()


def _read(scene: Scene, routing: RoutingRequest) -> ReadRequest:
    messages = [len(routing.chain.hashes) << 2 | USER]
    made = SimpleNamespace(
        forwarded=list,
        tenant=SimpleNamespace(name="t", limits=None, share_group="t"), key_id="",
        route="/v1/chat/completions",
        model=SimpleNamespace(name="m", continue_broken=False), alias=None, stream=scene.stream,
        include_usage=True, stream_options={}, keep_sglext=False, choices=1, prompts=1, metadata=None, salt="",
        opaque=False, counts_first=False, most_tokens=100, demanded_tokens=0, standing=NO_STANDING, engine_priority=0,
        session=None, routing=routing, forwarded_from=None, wire_model=None, several=scene.several,
        dropped=frozenset(), nulls=frozenset(), changes=NO_CHANGES, receipt_fields=b"", bounded=True,
        left_unanswered=lambda: setattr(scene, "unanswered", scene.unanswered + 1), messages=messages,
        agent=0, prefix_breaks=scene.prefix_breaks, is_compacted=lambda _: False,
        look=lambda body: scene.prefix_breaks.look(routing, messages, body, ""),
    )  # fmt: skip
    return ReadRequest(cast("ParsedRequest", made), Body(BODY))


def in_loop(steps: Callable[[], None]) -> None:
    """Run steps in an event loop, which timers need."""

    async def run() -> None:
        steps()

    asyncio.run(run())
