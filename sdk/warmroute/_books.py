"""What a client has observed: sums, sessions, homes, pending receipts. A client and its copies share one `Books`.

A *receipt* is the part of a turn's usage in which a proxy states cached tokens, losses and price. A *lineage* is the
turns of a session whose prompts continue each other, and its *home* is the region that has their KV.

All tables are bounded, and drop the oldest or least recently used entry first. `MAX_SESSIONS` limits sessions (their
sums and last turn) and conversations without a session key. `MAX_PENDING` limits receipts that a response head
announced, `MAX_COUNTED` ids of counted receipts, `MAX_FAULTS` faults of receipts, and `MAX_MODELS` models with known
rates. `contract.homes` limits homes, and the guard's memory limits prompts. The totals keep the turns of dropped
sessions. One lock (`with books`) covers all tables; no blocking call is made under it.
"""

import logging
import os
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from warmroute._guard import Guard, GuardEvent, Mode, PrefixBroken, announce
from warmroute._prices import Price
from warmroute._report import CacheReport, Totals
from warmroute._session import checked_key
from warmroute._turns import Counts, Turn
from warmroute._usage import Measured, measure
from warmroute._warm import MAX_ANSWER_TOKENS, Ping, arguments_of
from warmroute.contract.bounded import put
from warmroute.contract.conversations import Asked, Conversation, Conversations
from warmroute.contract.homes import Homes, Lineage
from warmroute.guard.causes import Cause
from warmroute.guard.memory import Reading
from warmroute.guard.outcome import UNKNOWN, Keeping, outcome
from warmroute.guard.prompt import Prompt, is_partial, text_of
from warmroute.guard.repair import Rule

MAX_RETURNED: Final = 16
"""The number of newest user messages that are looked up, because a client may have shortened one of them since."""


class Beginnings(NamedTuple):
    """The hashes and user messages of a prompt. `hashes`: for each message, a hash of the prompt up to it. `asked`: the
    user message that ends the prompt, if any. `returned`: the user messages that an assistant's message follows.
    """

    hashes: list[int]
    asked: Asked | None
    returned: list[Asked]


def beginnings_of(prompt: Prompt) -> Beginnings | None:
    """The `Beginnings` of a prompt; None if it has no user message."""
    system, messages = prompt.system, prompt.messages
    roles = [*system.roles, *messages.roles]
    if "user" not in roles or messages.name == "prompt":
        return None
    front = len(prompt.tools)
    stem = prompt.chain[front - 1] if front else hash(prompt.model)
    hashes = prompt.chain[front:]
    pieces = [*(system.raw or ()), *(messages.raw or ())]
    returned: list[Asked] = []
    asked = None
    for at in range(max(len(roles) - 2 * MAX_RETURNED, 0), len(roles)):
        role = roles[at]
        if role == "user":
            text = text_of(pieces[at]).encode("utf-8", "surrogatepass")
            asked = Asked(at, hashes[at - 1] if at else stem, text) if text else None
            continue
        if asked is not None and role in ("assistant", "model"):
            returned.append(asked)
        asked = None
    return Beginnings(hashes, asked, returned)


log = logging.getLogger("warmroute")

MAX_SESSIONS: Final = 1000
MAX_PENDING: Final = 1000
MAX_COUNTED: Final = 1000
MAX_FAULTS: Final = 100
MAX_MODELS: Final = 1000


@dataclass(slots=True)
class _Session:
    counts: Counts = field(default_factory=Counts)
    last_turn: Turn | None = None


class _Shelter:
    __slots__ = ("_books",)

    def __init__(self, books: "Books") -> None:
        self._books = books

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, PrefixBroken):
            return False
        self._books.count_internal_error()
        # Log the type alone: the message may contain what the caller sent.
        log.debug("error inside the SDK, kept from the call: %s", type(error).__name__)
        return True


WAIT_S: Final = 1.0
"""How long the end of a turn waits for the tables, which no thread uses for long."""

collectors: Final[list[list["Books"]]] = []
"""Lists to which each new `Books` is added, for the pytest plugin; empty otherwise."""


class Books:
    """What a client and its copies have observed. Thread-safe."""

    def __init__(self, guard: Guard, on_end: Callable[[Turn], None] | None = None) -> None:
        """`on_end` is called with each turn that has ended, outside of the lock."""
        self._on_end = on_end
        for collector in collectors:
            collector.append(self)
        self.guard = guard
        self._lock = threading.Lock()
        self._owner = 0  # the thread that holds it
        self._ends: deque[tuple[Turn, Mapping[str, Any] | None]] = deque()
        self._counts = Counts()
        self._ahead = Counts()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._homes = Homes()
        self._pending: OrderedDict[str, Turn] = OrderedDict()
        self._counted: OrderedDict[str, None] = OrderedDict()  # ids of receipts whose usage was added
        self._faults: deque[str] = deque(maxlen=MAX_FAULTS)
        self._faults_found = 0
        self._internal_errors = 0
        self._last_turn: Turn | None = None
        self._rates: OrderedDict[str, Price] = OrderedDict()  # by model
        self._pid = 0
        self._conversations: Conversations

    def __enter__(self) -> None:
        """Hold the tables."""
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._owner = 0
        self._lock.release()
        if self._ends:
            self._settle_ends()

    def home(self, lineage: Lineage | None) -> str | None:
        """The region that holds a lineage, as its server reported it."""
        if lineage is None:
            return None
        with self:
            return self._homes.of(lineage)

    def conversation(self, turn: Turn, body: Mapping[str, Any]) -> Conversation | None:
        """The conversation that a prompt without a session continues or begins; None if its messages are unknown."""
        if is_partial(body):
            return None
        with self:
            turn.prompt = self.guard.memory.read_unnamed(body)
            beginnings = beginnings_of(turn.prompt)
            if beginnings is None:
                return None
            if self._pid != os.getpid():  # new process, perhaps forked: its keys need a new name
                self._pid = os.getpid()
                self._conversations = Conversations(secrets.token_hex(8), max_conversations=MAX_SESSIONS)
            found = self._conversations.of("", *beginnings)
            self.guard.memory.opened(found.key, body)
            return found

    def check(self, turn: Turn, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have the guard compare a turn's prompt with earlier prompts of its lineage. Returns the body to send."""
        if turn.session is None or is_partial(body):
            return body
        guard = self.guard
        with self:
            if not guard.compares:
                if turn.prompt is not None:  # kept, so that the next prompt reuses the digests of equal parts
                    prompts = guard.memory.session(turn.lineage).prompts
                    before = next((one for one in prompts if one.begins(turn.prompt)), None)
                    guard.memory.keep(turn.lineage, Reading(turn.prompt, before, None))
                    turn.prompt = None
                return body
            rates = self._rates.get(turn.model)
            usd_per_token = None if rates is None else rates.usd_per_token
            checked = guard.check(turn.session, turn.lineage, body, usd_per_token, turn.prompt)
            turn.checked, turn.prompt = checked.found(), None
            event = checked.event
            news = event is not None and guard.mode is not Mode.OFF and guard.is_news(event)
            if event is not None and guard.mode is Mode.RAISE:
                raise PrefixBroken(event)
            guard.sent(turn.lineage, checked)
            frozen = [used for used in checked.repairs if used.repaired_by is Rule.FREEZE_DATE and guard.is_news(used)]
        if news and event is not None:
            announce(event)
        for used in frozen:
            announce(used)
        return checked.body

    def answered(self, turn: Turn, home: str | None, receipt_id: str | None) -> None:
        """Count a turn whose answer has begun. `home` and `receipt_id` are from the answer's head. A turn with a known
        `receipt_id` is not counted: it repeats the idempotency key of a turn that was counted.
        """
        turn.receipt_id = receipt_id
        with self:
            known = receipt_id in self._pending or receipt_id in self._counted
            (self._ahead if turn.ahead else self._counts).turns += not known
            if not turn.ahead:
                self._last_turn = turn
            if receipt_id is not None and receipt_id not in self._counted:
                put(self._pending, receipt_id, turn, MAX_PENDING)
            if turn.session is not None:
                session = self._session(turn.session)
                session.counts.turns += not known and not turn.ahead
                if not turn.ahead:
                    session.last_turn = turn
                if home is not None and turn.at is not None:
                    self._homes.answered(turn.at, home)

    def settle(self, turn: Turn, usage: Mapping[str, Any]) -> None:
        """Add the usage of a turn. Only the first call counts: an answer, a retry's answer and a fetched receipt may
        all have the usage.
        """
        with self:
            self._settle(turn, measure(usage, turn.receipt_id, turn.model))

    def _settle(self, turn: Turn, measured: Measured) -> None:
        if turn.measured is not None:
            return
        turn.measured = measured
        if turn.receipt_id is not None:
            if turn.receipt_id in self._counted:
                return
            self._pending.pop(turn.receipt_id, None)
            put(self._counted, turn.receipt_id, None, MAX_COUNTED)
        (self._ahead if turn.ahead else self._counts).add(measured)
        if turn.session is not None and not turn.ahead:
            self._session(turn.session).counts.add(measured)
        if measured.rates is not None:
            put(self._rates, turn.model, measured.rates, MAX_MODELS)
        self._judge(turn, measured)
        self._faults.extend(measured.faults)
        self._faults_found += len(measured.faults)

    def ended(self, turn: Turn, usage: Mapping[str, Any] | None = None) -> None:
        """Settle a turn that has ended, with its usage or without. If this thread uses the tables, since garbage
        collection has ended a stream, or another one does for long, the turn is settled when they are free.
        """
        self._ends.append((turn, usage))
        self._settle_ends(0.0 if self._owner == threading.get_ident() else WAIT_S)

    def _settle_ends(self, wait_s: float = 0.0) -> None:
        while self._ends and self._lock.acquire(timeout=wait_s):
            turn, self._owner = None, threading.get_ident()
            with self.shelter():
                try:
                    if self._ends:
                        turn, usage = self._ends.popleft()
                        if usage is not None:
                            self._settle(turn, measure(usage, turn.receipt_id, turn.model))
                        if turn.checked is not None:
                            self.guard.memory.ended(turn.lineage, turn.checked.tip)
                finally:
                    self._owner = 0
                    self._lock.release()
            if turn is not None and self._on_end is not None:
                with self.shelter():
                    self._on_end(turn)

    def settle_fetched(self, receipt_id: str, usage: Mapping[str, Any]) -> None:
        """Add the usage that `fetch` got for a receipt, if the receipt is pending (announced but not read)."""
        with self:
            turn = self._pending.get(receipt_id)
        if turn is not None:
            self.settle(turn, usage)

    def shelter(self) -> "_Shelter":
        """A block whose exceptions, except `PrefixBroken`, are counted and suppressed as errors of the SDK."""
        return _Shelter(self)

    def count_internal_error(self) -> None:
        with self:
            self._internal_errors += 1

    def pending(self) -> list[str]:
        with self:
            return list(self._pending)

    def last_turn(self, session: str | None) -> Turn | None:
        """The last turn of a session, or of the client if `session` is None."""
        with self:
            if session is None:
                return self._last_turn
            return self._sessions[session].last_turn if session in self._sessions else None

    def guard_events(self) -> tuple[GuardEvent, ...]:
        """The guard's events, newest last."""
        with self:
            return tuple(self.guard.events)

    def guard_counts(self) -> dict[str, int]:
        """How often each cause was found and not repaired."""
        with self:
            return {str(cause): count for cause, count in self.guard.counts.items() if count}

    def guard_repairs(self) -> dict[str, int]:
        """How often each repair rule was used."""
        with self:
            return dict(self.guard.repairs)

    def last_arguments(self, session: str | None) -> dict[str, Any]:
        """Model and tools of `last_turn(session)`; empty if the guard has not read that turn."""
        prompt = self._newest_prompt(self.last_turn(session))
        if prompt is None:
            return {}
        return {"model": prompt.model, **({"tools": list(prompt.tools.raw)} if prompt.tools.raw else {})}

    def ping_of(self, session: str) -> Ping | None:
        """The call that repeats the last prompt of a session's main loop, with its highest cost. None if that prompt is
        not known.
        """
        with self:
            prompt = self.guard.memory.main(session)
            rates = None if prompt is None else self._rates.get(prompt.model)
        if prompt is None or (arguments := arguments_of(prompt)) is None:
            return None
        if rates is None:
            return Ping(arguments, None)
        if not prompt.tokens:  # the cost is unknown, so no ping is sent: not now if the call runs, else never
            return None if prompt.ended else Ping({}, 0)
        return Ping(arguments, rates.worst_nanousd(prompt.tokens, MAX_ANSWER_TOKENS))

    def samples(self, session: str, count: int, *, spread: bool) -> list[str]:
        if count < 1:
            raise ValueError("samples() needs a count of 1 or more")
        return [self.fork(session, None) for _ in range(count)] if spread else [session] * count

    def keeping_of(self, session: str) -> Keeping:
        """How long the server of a session's last turn caches prompts, and the shortest prompt that it caches."""
        turn = self.last_turn(session)
        return UNKNOWN if turn is None else turn.keeping

    def cached_share(self, session: str | None) -> float | None:
        """The price of a cached token as a share of an uncached one's, by the rates of the last turn."""
        turn = self.last_turn(session)
        rates = None if turn is None or turn.measured is None else turn.measured.rates
        return None if rates is None else rates.cached_share

    def save(self, session: str) -> dict[str, Any]:
        """The homes and prompt digests of a session, as JSON. Raises: LookupError, for a session without a turn."""
        with self:
            self._check_seen(session)
            return {
                "session": session,
                "homes": self._homes.of_session(session),
                "guard": self.guard.memory.save(session),
            }

    def load(self, saved: Mapping[str, Any]) -> str:
        key, homes, guard = saved.get("session"), saved.get("homes"), saved.get("guard")
        if not isinstance(key, str) or not isinstance(homes, Mapping) or not isinstance(guard, Mapping):
            raise ValueError("load() needs the value of save(): session, homes or guard is missing")
        checked_key(key)
        with self:
            self.guard.memory.load(key, guard)
            for base_url, home in homes.items():
                self._homes.put(str(base_url), key, str(home))
        return key

    def fork(self, session: str, key: str | None) -> str:
        twin = f"f-{secrets.token_hex(16)}" if key is None else checked_key(key)
        with self:
            self._check_seen(session)
            self.guard.memory.copy(session, twin)
            for base_url, home in self._homes.of_session(session).items():
                self._homes.put(base_url, twin, home)
        return twin

    def _check_seen(self, session: str) -> None:
        """Raise LookupError for a session without a turn. The caller holds the lock."""
        known = session in self._sessions or self.guard.memory.known(session) is not None
        if not known and not self._homes.of_session(session):
            raise LookupError(f"this client has seen no turn of session {session!r}")

    def report(self) -> CacheReport:
        with self:
            return CacheReport(
                **self._counts.values(),
                warmed=Totals(**self._ahead.values()),
                receipts_pending=len(self._pending),
                violations=tuple(self._faults),
                violations_found=self._faults_found,
                internal_errors=self._internal_errors,
                by_session={
                    key: Totals(**session.counts.values())
                    for key, session in self._sessions.items()
                    if session.counts.turns
                },
            )

    def _judge(self, turn: Turn, measured: Measured) -> None:
        """Give the guard the server's token count. If an intact prefix was not cached, note the cause."""
        found = turn.checked
        if found is None or turn.session is None:
            return
        self.guard.memory.ended(turn.lineage, found.tip, measured.prompt_tokens)
        if found.event is not None:
            return
        expected = found.expected_tokens
        cause = outcome(expected, measured.cached_tokens, measured.prompt_tokens, found.idle_s, turn.keeping)
        if cause is not None and cause is not Cause.FIRST_TURN:
            lost = max(min(expected, measured.prompt_tokens) - (measured.cached_tokens or 0), 0)
            turn.miss = self.guard.missed(cause, turn.session, lost, found.usd_per_token)

    def _newest_prompt(self, turn: Turn | None) -> Prompt | None:
        with self:
            known = None if turn is None or turn.checked is None else self.guard.memory.known(turn.lineage)
            return known.prompts[0] if known is not None and known.prompts else None

    def _session(self, key: str) -> _Session:
        session = self._sessions.get(key) or _Session()
        put(self._sessions, key, session, MAX_SESSIONS)
        return session
