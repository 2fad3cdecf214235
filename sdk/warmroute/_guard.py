"""The prefix guard of a client: reads each prompt before it is sent, repairs it by the chosen rules, reports breaks.

A *break* is a change to the part of the prompt that the server has cached. Prompts are compared within a *lineage*:
the turns of a session whose prompts continue each other.

With `guard="off"` and no repair rules, only prompts without a session are read, to find their conversation. `"warn"`
reports each cause once per session, by `logging` and `warnings`. `"raise"` raises `PrefixBroken` instead of sending the
call. Events hold tool names, sizes, and places in the prompt, but no text of a prompt.
"""

import logging
import sys
import time
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from typing import Any, Final

from warmroute.contract.bounded import put
from warmroute.guard.causes import CLIENTS_OWN, WORDS, Cause
from warmroute.guard.compare import Break
from warmroute.guard.memory import Memory, Reading, repeated_bytes
from warmroute.guard.prompt import Prompt
from warmroute.guard.repair import Rule, repaired, rules_of

log = logging.getLogger("warmroute")

MAX_EVENTS: Final = 1000
"""Events that are kept; the oldest is dropped."""

MAX_WARNED: Final = 10_000
"""Pairs of cause and session that were reported; the oldest pair is dropped, and may then be reported again."""

_LIBRARIES: Final = (
    "warmroute",
    "openai",
    "anthropic",
    "httpx",
    "httpx2",
    "mistralai",
    "google",
    "asyncio",
    "contextlib",
)


class Mode(StrEnum):
    """The reaction of the guard to a broken prefix."""

    OFF = "off"
    WARN = "warn"
    RAISE = "raise"


class PrefixWarning(UserWarning):
    """A call breaks the cached prefix of its session."""


class PrefixBroken(Exception):
    """Raised instead of sending a call that breaks the cached prefix of its session, with `guard="raise"`."""

    def __init__(self, event: "GuardEvent") -> None:
        super().__init__(event)
        self.event = event

    def __str__(self) -> str:
        return str(self.event)


@dataclass(frozen=True, slots=True)
class GuardEvent:
    """A broken prefix, a repair, or a cache miss of the server, without any text of a prompt."""

    cause: Cause
    where: str
    """The first part that differs, such as `messages[3] (tool)`."""
    session: str
    tokens_lost: int
    """Tokens of the earlier prompt that have to be computed again; an estimate from the server's counts so far."""
    usd_lost: float | None
    """The extra price of `tokens_lost` over cached tokens; None if no rates are known."""
    line: int | None
    """The number of the first line that differs in the part's text, from 1."""
    repaired_by: Rule | None = None
    """The rule that repaired the prompt before it was sent; no tokens are lost then."""

    @property
    def fix(self) -> str:
        """What to change in order to remove the cause."""
        return WORDS[self.cause].fix

    @property
    def is_clients_own(self) -> bool:
        """Whether the client can remove the cause. Otherwise the cause is the server, or elapsed time."""
        return self.cause in CLIENTS_OWN

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        if self.repaired_by is not None:
            return f"{self.cause} at {self.where}{line}: {WORDS[self.cause].meaning}; repaired by {self.repaired_by}."
        usd = "" if self.usd_lost is None else f", {self.usd_lost:.6f} USD more than cached"
        return (
            f"{self.cause} at {self.where}{line}: {WORDS[self.cause].meaning}; "
            f"about {self.tokens_lost:,} tokens are computed again{usd}. To change: {self.fix}."
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a check that are kept while its call runs. Calls may run long, so the prompt is not kept."""

    event: GuardEvent | None
    repairs: tuple[GuardEvent, ...]
    usd_per_token: float | None
    continues: bool
    """Whether the prompt has an earlier one in its lineage."""
    expected_tokens: int
    """Tokens of the earlier prompt; 0 if they are not known."""
    idle_s: float
    tip: int
    """A hash of the whole prompt, by which the memory finds the prompt."""


@dataclass(slots=True)
class Checked:
    """A prompt that the guard has read."""

    body: Mapping[str, Any]
    """What to send; the caller's own object if nothing was repaired."""
    reading: Reading
    event: GuardEvent | None
    usd_per_token: float | None
    repairs: tuple[GuardEvent, ...] = ()
    """The repairs that were made before sending."""

    def found(self) -> Found:
        """The results to keep while the call runs."""
        before, prompt = self.reading.before, self.reading.prompt
        return Found(
            self.event,
            self.repairs,
            self.usd_per_token,
            before is not None,
            before.tokens if before is not None else 0,
            prompt.sent_s - before.sent_s if before is not None else 0.0,
            prompt.chain[-1] if prompt.chain else 0,
        )


class Guard:
    """The guard that a client shares with its copies. The guard is not thread-safe: its caller holds a lock around each
    method call."""

    def __init__(self, mode: str = Mode.WARN, repair: str | Iterable[str] | None = None) -> None:
        try:
            self.mode = Mode(mode)
        except ValueError:
            raise ValueError(f"guard={mode!r} is not one of {', '.join(Mode)}") from None
        self.rules = rules_of(repair)
        self.memory = Memory()
        self.events: deque[GuardEvent] = deque(maxlen=MAX_EVENTS)
        self.counts: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self.prompt_bytes = 0
        self.repeated_bytes = 0
        """The part of `prompt_bytes` that repeats an earlier prompt of the same lineage."""
        self._warned: OrderedDict[tuple[str, str], None] = OrderedDict()

    @property
    def compares(self) -> bool:
        return self.mode is not Mode.OFF or bool(self.rules)

    def check(
        self,
        session: str,
        lineage: str,
        body: Mapping[str, Any],
        usd_per_token: float | None,
        prompt: Prompt | None = None,
    ) -> Checked:
        """Compare a prompt with earlier ones of its lineage, and repair it by the rules. `prompt`: the body as parts,
        if it was read before.

        `usd_per_token`: the extra price of an uncached token over a cached one.
        """
        found = repaired(self.memory, lineage, body, self.rules, prompt)
        repairs = tuple(GuardEvent(use.cause, use.where, session, 0, None, None, use.rule) for use in found.uses)
        for used in repairs:
            self._note(used)
            self.repairs[str(used.repaired_by)] += 1
        reading = found.reading
        reading.prompt.sent_s = time.time()
        event = None
        if reading.broken is not None:
            event = self._event(session, lineage, reading, reading.broken, usd_per_token)
            self._note(event)
        return Checked(found.body, reading, event, usd_per_token, repairs)

    def sent(self, lineage: str, checked: Checked) -> None:
        """Store the prompt, which is sent now, as the newest of its lineage, and count its bytes."""
        reading = checked.reading
        self.prompt_bytes += reading.prompt.size
        self.repeated_bytes += repeated_bytes(reading)
        self.memory.keep(lineage, reading)

    def missed(self, cause: Cause, session: str, tokens: int, usd_per_token: float | None) -> GuardEvent:
        """Note a cache miss that the client did not cause, and return its event."""
        event = GuardEvent(cause, "the prompt", session, tokens, _usd(tokens, usd_per_token), None)
        self._note(event)
        return event

    def is_news(self, event: GuardEvent) -> bool:
        """Whether the event's cause is new in its session. From this call on, the cause counts as known."""
        key = (event.cause, event.session)
        if key in self._warned:
            return False
        put(self._warned, key, None, MAX_WARNED)
        return True

    def _event(
        self, session: str, lineage: str, reading: Reading, broken: Break, usd_per_token: float | None
    ) -> GuardEvent:
        assert reading.before is not None
        lost_bytes = min(broken.lost_bytes, reading.prompt.size - broken.kept_bytes)  # removed bytes cost nothing
        tokens = max(int(lost_bytes / self.memory.session(lineage).bytes_per_token), 0)
        if reading.before.tokens:
            tokens = min(tokens, reading.before.tokens)
        return GuardEvent(broken.cause, broken.where, session, tokens, _usd(tokens, usd_per_token), broken.line)

    def _note(self, event: GuardEvent) -> None:
        self.events.append(event)
        self.counts[event.cause] += event.repaired_by is None


def announce(event: GuardEvent) -> None:
    """Report an event by `logging` and `warnings`, at the caller's line. The call is sent even if a filter turns
    warnings into errors.
    """
    text = f"session {event.session}: {event}"
    log.warning("%s", text)
    file, line = _callers_line()
    try:
        warnings.warn_explicit(text, PrefixWarning, file, line)
    except PrefixWarning:
        pass


def _callers_line() -> tuple[str, int]:
    """File and line of the caller: the innermost frame outside of this package and of the libraries that it uses."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        module = str(caller.f_globals.get("__name__", "")).partition(".")[0]
        if module not in _LIBRARIES:
            return caller.f_code.co_filename, caller.f_lineno
        caller = caller.f_back
    return "<unknown>", 0


def _usd(tokens: int, usd_per_token: float | None) -> float | None:
    return None if usd_per_token is None else tokens * usd_per_token
