"""The prefix guard of a client: reads each prompt before it is sent, repairs it where asked to, and says what broke.

`guard="off"` reads nothing but prompts without a session, whose conversation has to be found. `"warn"` says each cause
once per session, by `logging` and `warnings`. `"raise"` raises `PrefixBroken` instead of sending the call. Events hold
places, sizes and names of tools, and no text of a prompt.
"""

import logging
import sys
import time
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from warmroute.guard.causes import CLIENTS_OWN, WORDS, Cause
from warmroute.guard.compare import Break
from warmroute.guard.memory import Memory, Reading, repeated_bytes
from warmroute.guard.prompt import Prompt
from warmroute.guard.repair import Rule, Use, repaired, rules_of

log = logging.getLogger("warmroute")

MAX_EVENTS: Final = 1000
"""Events that are kept; the oldest is dropped."""

MAX_WARNED: Final = 10_000
"""Causes and sessions that were warned of; the oldest is dropped, and would be warned of again."""

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
    """One broken prefix, or one cache miss of the server, without any text of a prompt."""

    cause: Cause
    where: str
    """The first part that differs, such as `messages[3] (tool)`."""
    session: str
    tokens_lost: int
    """Tokens of the earlier prompt that have to be computed again; counted by the server's own counts so far."""
    usd_lost: float | None
    """Their price above that of cached ones; None if no rates are known."""
    line: int | None
    """The line of that part's text, from 1."""
    repaired_by: Rule | None = None
    """The rule that mended it before it was sent; nothing is lost then."""

    @property
    def fix(self) -> str:
        """The change that removes the cause."""
        return WORDS[self.cause].fix

    @property
    def is_clients_own(self) -> bool:
        """Whether the client can remove the cause. Otherwise it lies with the server, or with elapsed time."""
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
    """What stays of a check while its call goes on: no part of the prompt, since calls may stay open for long."""

    event: GuardEvent | None
    repairs: tuple[GuardEvent, ...]
    usd_per_token: float | None
    continues: bool
    """Whether its lineage had a prompt before."""
    expected_tokens: int
    """Tokens of that prompt; 0 if they are not known."""
    idle_s: float
    tip: int
    """The end of the prompt's chain, by which the memory finds it."""


@dataclass(slots=True)
class Checked:
    """A prompt that the guard has read."""

    body: Mapping[str, Any]
    """What to send; the caller's own object if nothing was repaired."""
    reading: Reading
    event: GuardEvent | None
    usd_per_token: float | None
    repairs: tuple[GuardEvent, ...] = ()
    """What was mended before it was sent."""

    def found(self) -> Found:
        """What stays of it."""
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
    """The guard of a client and its copies. Its owner holds a lock around each call but `announce`."""

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
        """Of those, what a prompt repeats of its lineage."""
        self._warned: OrderedDict[tuple[str, str], None] = OrderedDict()

    @property
    def compares(self) -> bool:
        """Whether prompts are read at all."""
        return self.mode is not Mode.OFF or bool(self.rules)

    def read_unnamed(self, body: Mapping[str, Any]) -> Prompt:
        """The prompt of a call that names no session."""
        return self.memory.read_unnamed(body)

    def check(
        self,
        session: str,
        lineage: str,
        body: Mapping[str, Any],
        usd_per_token: float | None,
        prompt: Prompt | None = None,
    ) -> Checked:
        """Compare a prompt with those of its lineage, and repair it by the rules. `prompt`: the body, if it was read.

        `usd_per_token`: what a token costs more if it is not cached.
        """
        found = repaired(self.memory, lineage, body, self.rules, prompt)
        repairs = tuple(_repair_event(use, session) for use in found.uses)
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
        """The prompt goes out."""
        reading = checked.reading
        self.prompt_bytes += reading.prompt.size
        self.repeated_bytes += repeated_bytes(reading)
        self.memory.keep(lineage, reading)

    def missed(self, cause: Cause, session: str, tokens: int, usd_per_token: float | None) -> GuardEvent:
        """A miss that is not the client's."""
        event = GuardEvent(cause, "the prompt", session, tokens, _usd(tokens, usd_per_token), None)
        self._note(event)
        return event

    def is_news(self, event: GuardEvent) -> bool:
        """Whether that cause was not warned of in that session before; from now on it was."""
        key = (event.cause, event.session)
        if key in self._warned:
            return False
        self._warned[key] = None
        if len(self._warned) > MAX_WARNED:
            self._warned.popitem(last=False)
        return True

    def _event(
        self, session: str, lineage: str, reading: Reading, broken: Break, usd_per_token: float | None
    ) -> GuardEvent:
        assert reading.before is not None
        lost_bytes = min(broken.lost_bytes, reading.prompt.size - broken.kept_bytes)  # what is gone is not computed
        tokens = max(int(lost_bytes / self.memory.session(lineage).bytes_per_token), 0)
        if reading.before.tokens:
            tokens = min(tokens, reading.before.tokens)
        return GuardEvent(broken.cause, broken.where, session, tokens, _usd(tokens, usd_per_token), broken.line)

    def _note(self, event: GuardEvent) -> None:
        self.events.append(event)
        self.counts[event.cause] += event.repaired_by is None


def announce(event: GuardEvent) -> None:
    """Say an event by `logging` and `warnings`, at the caller's line. A filter that makes errors of warnings is obeyed
    only as far as the warning goes: the call is sent.
    """
    text = f"session {event.session}: {event}"
    log.warning("%s", text)
    file, line = _callers_line()
    try:
        warnings.warn_explicit(text, PrefixWarning, file, line)
    except PrefixWarning:
        pass


def _callers_line() -> tuple[str, int]:
    """The line that made the call: the first one outside of this package and the libraries below it."""
    caller = sys._getframe(1)
    while caller is not None:
        module = str(caller.f_globals.get("__name__", "")).partition(".")[0]
        if module not in _LIBRARIES:
            return caller.f_code.co_filename, caller.f_lineno
        if caller.f_back is None:
            break
        caller = caller.f_back
    return "<unknown>", 0


def _repair_event(use: Use, session: str) -> GuardEvent:
    return GuardEvent(use.cause, use.where, session, 0, None, None, use.rule)


def _usd(tokens: int, usd_per_token: float | None) -> float | None:
    return None if usd_per_token is None else tokens * usd_per_token
