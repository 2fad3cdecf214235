"""Analyses the turns of recorded sessions: cached and lost tokens of each turn, and the cost of each cause.

Token counts are those of the recorded answers. For an answer without counts, tokens are the bytes of the canonical
prompt divided by 4. The part of the prompt that repeats the earlier turn then counts as cached, which is the best that
any server can do.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from warmroute._prices import price_of
from warmroute.contract.usage import tokens_of
from warmroute.files.printable import number_of, printable
from warmroute.guard.causes import Cause
from warmroute.guard.memory import BYTES_PER_TOKEN, Memory, Reading, repeated_bytes
from warmroute.guard.outcome import UNKNOWN, outcome
from warmroute.guard.prompt import is_partial, read, text_of
from warmroute.lint.transcript import Recorded, TranscriptError

MAX_LINE_CHARS: Final = 160
MAX_TURNS: Final = 500_000
"""The maximum number of turns in all files together; each turn takes 1 KB of memory."""

_LETTER: Final = re.compile(r"[^\W\d_]")
_DIGIT: Final = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class Turn:
    """One recorded request. All token counts are counts of prompt tokens."""

    number: int
    prompt_tokens: int
    cached_tokens: int
    """The recorded count; else the tokens that repeat the turn before."""
    lost_tokens: int
    """Tokens of the turn before that were not cached, although they could have been."""
    cause: Cause | None = None
    where: str = ""
    line: int | None = None
    before: str = ""
    now: str = ""
    """`before` and `now` are the changed line in the earlier and in this turn; masked unless the user asked for text.
    """
    lost_usd: float | None = None
    compacted_tokens: int = 0
    """The tokens by which a compaction made the prompt shorter."""
    saved_usd_a_turn: float | None = None
    """Price of `compacted_tokens` at the cached rate: the saving of each later turn."""

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that no cache could have saved."""
        return max(self.prompt_tokens - self.cached_tokens - self.lost_tokens, 0)


@dataclass(slots=True)
class Session:
    name: str
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CauseTotal:
    """Turns, tokens and cost of one cause in one session."""

    session: str
    cause: Cause
    turns: int
    tokens: int
    usd: float | None
    where: str
    """The place of the break in turn `number`, the first turn with the cause."""
    number: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """All sessions of the files."""

    sessions: tuple[Session, ...]
    is_recorded: bool
    """Whether all cached tokens come from recorded answers."""

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_tokens for session in self.sessions for turn in session.turns)

    @property
    def cached_tokens(self) -> int:
        return sum(turn.cached_tokens for session in self.sessions for turn in session.turns)

    @property
    def hit_ratio(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def extent(self) -> str:
        """The numbers of turns and sessions, such as `9 turns of 2 sessions`."""
        turns, sessions = sum(len(session.turns) for session in self.sessions), len(self.sessions)
        return f"{number_of(turns, 'turn')} of {number_of(sessions, 'session')}"

    def causes(self) -> list[CauseTotal]:
        """Cost of each cause in each session, the most expensive first."""
        found = []
        for session in self.sessions:
            by_cause: dict[Cause, list[Turn]] = defaultdict(list)
            for turn in session.turns:
                if turn.cause is not None:
                    by_cause[turn.cause].append(turn)
            found += [_total(session.name, cause, turns) for cause, turns in by_cause.items()]
        return sorted(found, key=lambda total: (-total.tokens, total.session, total.cause))

    def counts(self) -> Counter[Cause]:
        """The number of turns that each cause broke."""
        return Counter(turn.cause for session in self.sessions for turn in session.turns if turn.cause is not None)


def analysed(requests: Iterable[Recorded], *, show_text: bool = False) -> Analysis:
    """Analyse recorded requests. Sessions stay in the order of their first turns. Raises: TranscriptError."""
    memory, sessions, recorded = Memory(), dict[str, Session](), True
    for count, request in enumerate(requests, 1):
        if count > MAX_TURNS:
            raise TranscriptError(f"more than {MAX_TURNS:,} requests: lint fewer files at a time")
        partial = is_partial(request.body)
        reading = Reading(read(request.body), None, None) if partial else memory.read(request.session, request.body)
        reading.prompt.sent_s = request.time_s or 0.0
        session = sessions.setdefault(request.session, Session(request.session))
        turn, has_usage = _turn(request, reading, memory, show_text)
        recorded &= has_usage
        session.turns.append(turn)
        if not partial:
            memory.keep(request.session, reading)
    return Analysis(tuple(sessions.values()), recorded)


def _turn(request: Recorded, reading: Reading, memory: Memory, show_text: bool) -> tuple[Turn, bool]:
    prompt, before = reading.prompt, reading.before
    tokens = None if request.usage is None else tokens_of(request.usage)
    counted = (tokens.prompt if tokens is not None else 0) or max(int(prompt.size / BYTES_PER_TOKEN), 1)
    memory.session(request.session).counted(prompt, counted)
    broken = reading.broken
    predicted = min(int(repeated_bytes(reading) / prompt.size * counted), counted) if prompt.size else 0
    cached = None if tokens is None else tokens.cached
    lost, cause = 0, None
    if broken is not None and before is not None:
        cause = broken.cause
        lost = min(int(broken.lost_bytes / before.size * before.tokens) if before.size else 0, counted)
    elif cached is not None and before is not None:
        cause = outcome(before.tokens, cached, counted, prompt.sent_s - before.sent_s, UNKNOWN)
        lost = max(min(before.tokens, counted) - cached, 0) if cause is not None else 0
    cached_tokens = predicted if cached is None else cached
    lost = min(lost, counted - min(cached_tokens, counted))
    compacted = max(before.tokens - counted, 0) if cause == Cause.COMPACTION and before is not None else 0
    line_before, line_now = _lines(reading) if broken is not None else ("", "")
    known = price_of(prompt.model)
    price = None if known is None else known.for_prompt(counted)
    turn = Turn(
        number=request.number,
        prompt_tokens=counted,
        cached_tokens=cached_tokens,
        lost_tokens=lost,
        cause=cause,
        where=printable(broken.where[:MAX_LINE_CHARS]) if broken else "",
        line=broken.line if broken else None,
        before=line_before if show_text else masked(line_before),
        now=line_now if show_text else masked(line_now),
        lost_usd=None if price is None or cause is None else lost * (price.input - price.cached) / 1e6,
        compacted_tokens=compacted,
        saved_usd_a_turn=None if price is None or not compacted else compacted * price.cached / 1e6,
    )
    return turn, cached is not None


def masked(text: str) -> str:
    """The text with x for each letter and 9 for each digit, which shows its shape and hides its content."""
    return _DIGIT.sub("9", _LETTER.sub("x", text))


def _lines(reading: Reading) -> tuple[str, str]:
    broken, before, prompt = reading.broken, reading.before, reading.prompt
    if broken is None or before is None or broken.line is None:
        return "", ""
    for old, new in zip(before.sections, prompt.sections, strict=True):
        for at in range(min(len(old), len(new))):
            if new.where(at) == broken.where:
                return _line(text_of(old.piece(at)), broken.line), _line(text_of(new.piece(at)), broken.line)
    return "", ""


def _line(text: str, number: int) -> str:
    lines = text.split("\n")
    return printable(lines[number - 1][:MAX_LINE_CHARS]) if number <= len(lines) else ""


def _total(session: str, cause: Cause, turns: list[Turn]) -> CauseTotal:
    prices = [turn.lost_usd for turn in turns]
    usd = None if None in prices else sum(price for price in prices if price is not None)
    lost = sum(turn.lost_tokens for turn in turns)
    return CauseTotal(session, cause, len(turns), lost, usd, turns[0].where, turns[0].number)
