"""What a client has observed: sums, sessions, homes, pending receipts. A client and all of its copies share one.

Everything is bounded, and the oldest or least recently used is dropped first: homes by the limit of `_homes`, sessions
(their sums, last turn and `PROMPTS_KEPT` prompt digests) and conversations without a session by `MAX_SESSIONS`,
announced receipts by `MAX_PENDING`, receipts that were counted by `MAX_COUNTED`, faults by `MAX_FAULTS`. The totals
keep the turns of dropped sessions. One lock covers everything; no call blocks while it is held.
"""

import logging
import os
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from warmroute._homes import Homes, Lineage
from warmroute._prompt import Prompt, PromptReader, beginnings_of, closest, first_change
from warmroute._report import CacheReport, Totals
from warmroute._usage import Measured, measure
from warmroute.contract.conversations import Conversation, Conversations

log = logging.getLogger("warmroute")

K = TypeVar("K")
V = TypeVar("V")

MAX_SESSIONS: Final = 1000
MAX_PENDING: Final = 1000
MAX_COUNTED: Final = 1000
MAX_FAULTS: Final = 100
PROMPTS_KEPT: Final = 3
"""The last prompts of a session. A new prompt is compared with the one that it most likely continues."""


@dataclass(slots=True)
class Turn:
    """One call, from its request to its usage."""

    session: str | None
    streamed: bool
    lineage: Lineage | None = None
    withhold: bool = False
    """Whether only the SDK requested usage, so that the caller must not get its chunk."""
    change: str | None = None
    """A clause that says what the caller changed in the prompt; None where the prompt only grew."""
    first: bool = True
    """Whether it is the first known turn of its session."""
    receipt_id: str | None = None
    measured: Measured | None = None


@dataclass(slots=True)
class Counts:
    """Sums while they grow; the fields are those of `Totals`."""

    turns: int = 0
    turns_measured: int = 0
    receipts: int = 0
    continued: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    cached_of_tokens: int = 0
    list_nanousd: int | None = None
    cost_nanousd: int | None = None
    saved_nanousd: int | None = None
    losses: dict[str, int] = field(default_factory=dict)

    def add(self, turn: Measured) -> None:
        """Add the numbers of one turn."""
        self.turns_measured += 1
        self.receipts += turn.has_receipt
        self.continued += turn.continued
        self.prompt_tokens += turn.prompt_tokens
        self.completion_tokens += turn.completion_tokens
        if turn.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + turn.cached_tokens
            self.cached_of_tokens += turn.prompt_tokens
        if turn.amounts_nanousd is not None:
            self.list_nanousd = (self.list_nanousd or 0) + turn.amounts_nanousd.listed
            self.cost_nanousd = (self.cost_nanousd or 0) + turn.amounts_nanousd.cost
            self.saved_nanousd = (self.saved_nanousd or 0) + turn.amounts_nanousd.saved
        for name, tokens in turn.losses.items():
            self.losses[name] = self.losses.get(name, 0) + tokens

    def values(self) -> dict[str, Any]:
        """The sums by the names of `Totals`."""
        sums = {name: getattr(self, name) for name in self.__slots__}
        return {**sums, "losses": dict(self.losses)}


class _Session:
    __slots__ = ("counts", "last_turn", "prompts")

    def __init__(self) -> None:
        self.counts = Counts()
        self.last_turn: Turn | None = None
        self.prompts: deque[Prompt] = deque(maxlen=PROMPTS_KEPT)


class _Guard:
    __slots__ = ("_books",)

    def __init__(self, books: "Books") -> None:
        self._books = books

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._books.count_internal_error()
        # Without the message: it may contain what the caller sent.
        log.debug("error inside the SDK, kept from the call: %s", type(error).__name__)
        return True


class Books:
    """The books of a client and its copies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._homes = Homes()
        self._pending: OrderedDict[str, Turn] = OrderedDict()
        self._counted: OrderedDict[str, None] = OrderedDict()  # ids of receipts whose usage was added
        self._faults: deque[str] = deque(maxlen=MAX_FAULTS)
        self._faults_found = 0
        self._internal_errors = 0
        self._last_turn: Turn | None = None
        self._reader = PromptReader()
        self._pid = 0
        self._conversations: Conversations

    def home(self, lineage: Lineage | None) -> str | None:
        """The region that holds a lineage, as the server reported it."""
        if lineage is None:
            return None
        with self._lock:
            return self._homes.of(lineage)

    def read(self, body: Mapping[str, Any]) -> Prompt:
        """The digests of a body."""
        return self._reader.read(body)

    def conversation(self, body: Mapping[str, Any]) -> Conversation | None:
        """The conversation that a prompt without a session continues or begins; None where it has no messages."""
        beginnings = beginnings_of(body)
        if beginnings is None:
            return None
        with self._lock:
            if self._pid != os.getpid():  # another process since a fork: its conversations have names of their own
                self._pid = os.getpid()
                self._conversations = Conversations(secrets.token_hex(8), max_conversations=MAX_SESSIONS)
            return self._conversations.of("", *beginnings)

    def compare(self, turn: Turn, prompt: Prompt, body: Mapping[str, Any]) -> None:
        """Find what changed in the prompt of `turn` since earlier turns of its session, and store its digests."""
        if turn.session is None:
            return
        with self._lock:
            prompts = self._session(turn.session).prompts
            before = closest(prompt, prompts)
            turn.first = before is None
            turn.change = None if before is None else first_change(before, prompt, body)
            prompts.append(prompt)

    def answered(self, turn: Turn, home: str | None, receipt_id: str | None) -> None:
        """An answer has begun. `home` and `receipt_id`: from its head. A known receipt means the same turn again,
        repeated with the same idempotency key.
        """
        turn.receipt_id = receipt_id
        with self._lock:
            known = receipt_id in self._pending or receipt_id in self._counted
            self._counts.turns += not known
            self._last_turn = turn
            if receipt_id is not None and receipt_id not in self._counted:
                _put(self._pending, receipt_id, turn, MAX_PENDING)
            if turn.session is not None:
                session = self._session(turn.session)
                session.counts.turns += not known
                session.last_turn = turn
                if home is not None and turn.lineage is not None:
                    self._homes.answered(turn.lineage, home)

    def settle(self, turn: Turn, usage: Mapping[str, Any]) -> None:
        """Add the usage of a turn, once: it may come from the answer, a retry's answer, and a fetched receipt."""
        measured = measure(usage, turn.receipt_id)
        with self._lock:
            if turn.measured is not None:
                return
            turn.measured = measured
            if turn.receipt_id is not None:
                if turn.receipt_id in self._counted:
                    return
                self._pending.pop(turn.receipt_id, None)
                _put(self._counted, turn.receipt_id, None, MAX_COUNTED)
            self._counts.add(measured)
            if turn.session is not None:
                self._session(turn.session).counts.add(measured)
            self._faults.extend(measured.faults)
            self._faults_found += len(measured.faults)

    def settle_fetched(self, receipt_id: str, usage: Mapping[str, Any]) -> None:
        """Add usage that was fetched by its receipt's id, if that receipt is pending."""
        with self._lock:
            turn = self._pending.get(receipt_id)
        if turn is not None:
            self.settle(turn, usage)

    def guard(self) -> "_Guard":
        """A block whose exceptions are counted and suppressed, because they are the SDK's and not the call's."""
        return _Guard(self)

    def count_internal_error(self) -> None:
        """Count an exception that a guard suppressed."""
        with self._lock:
            self._internal_errors += 1

    def pending(self) -> list[str]:
        """Ids of receipts that were announced but not read, oldest first."""
        with self._lock:
            return list(self._pending)

    def last_turn(self, session: str | None) -> Turn | None:
        """The last turn of a session, or of all."""
        with self._lock:
            if session is None:
                return self._last_turn
            return self._sessions[session].last_turn if session in self._sessions else None

    def report(self) -> CacheReport:
        """All numbers as they are now."""
        with self._lock:
            return CacheReport(
                **self._counts.values(),
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

    def _session(self, key: str) -> _Session:
        session = self._sessions.get(key) or _Session()
        _put(self._sessions, key, session, MAX_SESSIONS)
        return session


def _put(mapping: "OrderedDict[K, V]", key: K, value: V, maximum: int) -> None:
    mapping[key] = value
    mapping.move_to_end(key)
    if len(mapping) > maximum:
        mapping.popitem(last=False)
