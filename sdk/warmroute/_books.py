"""What a client has seen: sums, sessions, homes, receipts still to come. One for a client and all of its copies.

Everything is bounded, and the oldest or least recently used goes first: homes by `MAX_HOMES`, sessions (their sums,
last turn and `PROMPTS_KEPT` prompt digests) by `MAX_SESSIONS`, announced receipts by `MAX_PENDING`, receipts that were
counted by `MAX_COUNTED`, faults by `MAX_FAULTS`. The totals lose nothing when a session goes. One lock covers all of
it; nothing waits while it is held.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from warmroute._prompt import Prompt, PromptReader, closest, first_change
from warmroute._report import CacheReport, Totals
from warmroute._usage import Measured, measure

log = logging.getLogger("warmroute")

K = TypeVar("K")
V = TypeVar("V")

MAX_HOMES: Final = 10_000
MAX_SESSIONS: Final = 1000
MAX_PENDING: Final = 1000
MAX_COUNTED: Final = 1000
MAX_FAULTS: Final = 100
PROMPTS_KEPT: Final = 3
"""A session's last prompts; a new one is compared with the one that it continues most likely."""


@dataclass(slots=True)
class Turn:
    """One call, from its request to its usage."""

    session: str | None
    streamed: bool
    withhold: bool = False
    """Whether usage was asked for by the SDK only, so that its chunk is not for the caller."""
    change: str | None = None
    """What the client itself changed in the prompt, a clause; None where it only grew."""
    first: bool = True
    """Whether nothing of the session was known when it began."""
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
        """Adds the numbers of one turn."""
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
        """The sums as they stand, by the names of `Totals`."""
        sums = {name: getattr(self, name) for name in self.__slots__}
        return {**sums, "losses": dict(self.losses)}


class _Session:
    __slots__ = ("counts", "last", "prompts")

    def __init__(self) -> None:
        self.counts = Counts()
        self.last: Turn | None = None
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
        # Without the message: it may hold what the caller sent.
        log.debug("error inside the SDK, kept from the call: %s", type(error).__name__)
        return True


class Books:
    """The shared memory of a client and its copies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._homes: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._pending: OrderedDict[str, Turn] = OrderedDict()
        self._counted: OrderedDict[str, None] = OrderedDict()  # ids of receipts whose usage was added
        self._faults: deque[str] = deque(maxlen=MAX_FAULTS)
        self._faults_found = 0
        self._internal_errors = 0
        self._last: Turn | None = None
        self._reader = PromptReader()

    def home(self, base_url: str, session: str | None) -> str | None:
        """The region in which the server at `base_url` said that it holds the session."""
        if session is None:
            return None
        with self._lock:
            if (base_url, session) in self._homes:
                self._homes.move_to_end((base_url, session))
            return self._homes.get((base_url, session))

    def compare(self, turn: Turn, body: Mapping[str, Any]) -> None:
        """Finds what changed in the prompt of `turn` since the session's turns before, and remembers its digests."""
        if turn.session is None:
            return
        prompt = self._reader.read(body)
        with self._lock:
            prompts = self._session(turn.session).prompts
            before = closest(prompt, prompts)
            turn.first = before is None
            turn.change = None if before is None else first_change(before, prompt, body)
            prompts.append(prompt)

    def answered(self, turn: Turn, base_url: str, home: str | None, receipt_id: str | None) -> None:
        """An answer began: its head named a home and a receipt, or neither. A receipt that is known already is the
        same turn again, asked for under the same key.
        """
        turn.receipt_id = receipt_id
        with self._lock:
            known = receipt_id in self._pending or receipt_id in self._counted
            self._counts.turns += not known
            self._last = turn
            if receipt_id is not None and receipt_id not in self._counted:
                _put(self._pending, receipt_id, turn, MAX_PENDING)
            if turn.session is not None:
                session = self._session(turn.session)
                session.counts.turns += not known
                session.last = turn
                if home is not None:
                    _put(self._homes, (base_url, turn.session), home, MAX_HOMES)

    def settle(self, turn: Turn, usage: Mapping[str, Any]) -> None:
        """Adds up the usage of a turn, once: it may come from the answer, a retry's, and a fetched receipt."""
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
        """Adds up usage that was fetched by its receipt's id, if that receipt is still to come."""
        with self._lock:
            turn = self._pending.get(receipt_id)
        if turn is not None:
            self.settle(turn, usage)

    def guard(self) -> "_Guard":
        """A block whose exceptions are counted and go no further, because they are ours and not the call's."""
        return _Guard(self)

    def count_internal_error(self) -> None:
        """Counts an exception that a guard stopped."""
        with self._lock:
            self._internal_errors += 1

    def pending(self) -> list[str]:
        """Ids of receipts that were announced and not seen, oldest first."""
        with self._lock:
            return list(self._pending)

    def last(self, session: str | None) -> Turn | None:
        """The last turn of a session, or of all."""
        with self._lock:
            if session is None:
                return self._last
            return self._sessions[session].last if session in self._sessions else None

    def report(self) -> CacheReport:
        """Everything as it stands."""
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
