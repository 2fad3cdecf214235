"""Keeps the prompts of sessions, finds the one that a request continues, and saves them as JSON.

A session has several *lineages*, in each of which prompts continue each other: the main loop, a title, sub-agents. The
memory keeps the newest prompt of each lineage, and the newest one that the server has counted. If a prompt breaks the
prefix of the one before, the memory keeps both, because samples and retries continue the earlier prompt. Limits:

    MAX_SESSIONS     the least recently used session is dropped
    MAX_PROMPTS      prompts of a session; the session's oldest prompt is dropped
    MAX_TEXT_BYTES   bytes of all parts; the least recently used sessions keep only digests

Digests show that a part changed, but not always how it changed.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from warmroute.guard.compare import Break, first_break, related, shared_bytes
from warmroute.guard.prompt import Prompt, Section, read, text_of
from warmroute.guard.volatile import DAY

MAX_SESSIONS: Final = 1000
MAX_PROMPTS: Final = 8
MAX_TEXT_BYTES: Final = 64 * 1024 * 1024
MAX_OPENINGS: Final = 1000
MAX_ALIKE: Final = 4
"""The maximum number of sessions that are kept for one opening (the beginning of a prompt). A request without a session
key may continue one of these sessions."""

MAX_MOVED: Final = 256
SAVED_VERSION: Final = 1
BYTES_PER_TOKEN: Final = 4.0
"""The ratio that is assumed until the server has counted tokens: about that of English text and JSON."""

_FEW_CHARS: Final = 256


@dataclass(slots=True)
class Remembered:
    """The memory of one session."""

    prompts: deque[Prompt] = field(default_factory=lambda: deque(maxlen=MAX_PROMPTS))
    """The session's prompts, newest first."""
    bytes_per_token: float = BYTES_PER_TOKEN
    days: list[list[str]] = field(default_factory=list)
    """The dates in each system message as they were sent; only for a session that was loaded."""
    moved: OrderedDict[int, str] = field(default_factory=OrderedDict)
    """Text that the rule `move-volatile` added to user messages, by the digest of the message without that text."""

    def note_moved(self, digest: int, text: str) -> None:
        """Remember a text that was added to a message, to add it again whenever that message is sent."""
        self.moved[digest] = text
        while len(self.moved) > MAX_MOVED:
            self.moved.popitem(last=False)

    def counted(self, prompt: Prompt, tokens: int) -> None:
        """Note the token count of a prompt, in place of the prompts that it continues."""
        prompt.tokens = tokens
        self.prompts = deque((one for one in self.prompts if one is prompt or not one.begins(prompt)), MAX_PROMPTS)
        if tokens > 0 and prompt.size:
            self.bytes_per_token = prompt.size / tokens


@dataclass(slots=True)
class Reading:
    """A request, compared with the earlier prompts of its session."""

    prompt: Prompt
    before: Prompt | None
    """The prompt that the request continues, or would continue without the break; None on a lineage's first turn."""
    broken: Break | None


class Memory:
    """The prompts of a client's sessions. Not thread-safe: its owner holds a lock."""

    def __init__(self, max_text_bytes: int = MAX_TEXT_BYTES) -> None:
        self._sessions: OrderedDict[str, Remembered] = OrderedDict()
        self._openings: OrderedDict[int, deque[str]] = OrderedDict()
        self._max_text_bytes = max_text_bytes
        self._text_bytes: dict[str, int] = {}
        self._total_bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def text_bytes(self) -> int:
        """Bytes of the parts that are kept, in canonical form. A part that two prompts share counts twice."""
        return self._total_bytes

    def session(self, key: str) -> Remembered:
        """The memory of a session, which becomes the most recently used one. A new session gets an empty memory."""
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = Remembered()
            if len(self._sessions) > MAX_SESSIONS:
                dropped, _ = self._sessions.popitem(last=False)
                self._total_bytes -= self._text_bytes.pop(dropped, 0)
        else:
            self._sessions.move_to_end(key)
        return found

    def known(self, key: str) -> Remembered | None:
        """The memory of a session; None for an unknown session."""
        return self._sessions.get(key)

    def read(self, key: str, body: Mapping[str, Any], prompt: Prompt | None = None) -> Reading:
        """Compare a request with the prompts of its session. `prompt`: the request, if it was read before."""
        prompts = self.session(key).prompts
        return compared(prompt or read(body, prompts), prompts)

    def read_unnamed(self, body: Mapping[str, Any]) -> Prompt:
        """Read a request of an unknown session, and reuse parts of prompts that begin alike."""
        opening = _opening(body)
        keys = self._openings.get(opening, ())
        return read(body, (prompt for key in keys if key in self._sessions for prompt in self._sessions[key].prompts))

    def opened(self, key: str, body: Mapping[str, Any]) -> None:
        """Note that a request without a session key was found to belong to session `key`."""
        keys = self._openings.setdefault(_opening(body), deque(maxlen=MAX_ALIKE))
        if key in keys:
            keys.remove(key)
        keys.appendleft(key)
        if len(self._openings) > MAX_OPENINGS:
            self._openings.popitem(last=False)

    def keep(self, key: str, reading: Reading) -> None:
        """Store the prompt of a request that is sent, as the newest of its lineage."""
        prompts = self.session(key).prompts
        before, counts = reading.before, reading.prompt.tokens
        # A counted prompt stays until the one that continues it is counted, too, because that call may fail.
        if before is not None and reading.broken is None and before in prompts and (counts or not before.tokens):
            prompts.remove(before)
        reading.prompt.continues = before is not None and (before.continues or before.tokens > 0)
        prompts.appendleft(reading.prompt)
        if len(prompts) > 1 and (same := reading.prompt.settings) == prompts[1].settings:
            reading.prompt.settings = same
        self._bound_text(key, prompts)

    def ended(self, key: str, tip: int, tokens: int = 0) -> None:
        """Note that a prompt's call has ended. `tip`: the last hash of the prompt's chain. `tokens`: the server's
        count; 0 if there is no count.
        """
        remembered = self._sessions.get(key)
        if remembered is None:
            return
        for prompt in remembered.prompts:
            if prompt.chain and prompt.chain[-1] == tip:
                prompt.ended = True
                if tokens:
                    remembered.counted(prompt, tokens)
                    self._bound_text(key, remembered.prompts)
                return

    def main(self, key: str) -> Prompt | None:
        """The newest prompt of the session's largest lineage, among those with a prompt that continues an earlier one
        if there are any. Prompts whose calls brought no count are left out, unless there are no others.
        """
        remembered, found = self._sessions.get(key), list[Prompt]()
        if remembered is None:
            return None
        for prompt in remembered.prompts:
            if (prompt.tokens or not prompt.ended) and not any(related(prompt, newer) for newer in found):
                found.append(prompt)
        several = [prompt for prompt in found if prompt.continues]  # a sub-agent that was asked once has one
        return max(several or found or remembered.prompts, key=lambda prompt: prompt.size, default=None)

    def save(self, key: str) -> dict[str, Any]:
        """A session as JSON: digests, sizes, roles, names of tools, dates in the system text, and `moved` text."""
        remembered = self._sessions.get(key) or Remembered()
        newest = next(iter(remembered.prompts), None)
        days = remembered.days
        if newest is not None and newest.system.raw is not None:
            days = [DAY.findall(text_of(piece)) for piece in newest.system.raw]
        return {
            "v": SAVED_VERSION,
            "bytes_per_token": round(remembered.bytes_per_token, 4),
            "days": days,
            "moved": {f"{digest:x}": text for digest, text in remembered.moved.items()},
            "prompts": [_saved(prompt) for prompt in remembered.prompts],
        }

    def load(self, key: str, saved: Mapping[str, Any]) -> None:
        """Restore a session from the value of `save`. Raises: ValueError for any other value."""
        if saved.get("v") != SAVED_VERSION:
            raise ValueError(f"a saved session of version {saved.get('v')!r}, not {SAVED_VERSION}")
        try:
            made = Remembered()
            made.bytes_per_token = max(float(saved["bytes_per_token"]), 0.1)
            made.days = [[str(day) for day in days] for days in saved["days"]]
            for digest, text in saved["moved"].items():
                made.note_moved(int(digest, 16), str(text))
            made.prompts.extend(_loaded(prompt) for prompt in saved["prompts"][:MAX_PROMPTS])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"a saved session that cannot be read: {type(error).__name__}: {error}") from None
        self.session(key)
        self._sessions[key] = made
        self._total_bytes -= self._text_bytes.pop(key, 0)

    def copy(self, key: str, twin: str) -> None:
        """Copy a session's prompts to session `twin`, which shares the prefix and then continues separately."""
        remembered = self._sessions.get(key)
        if remembered is not None:
            made = self.session(twin)
            made.prompts.extend(remembered.prompts)
            made.bytes_per_token = remembered.bytes_per_token
            made.moved.update(remembered.moved)

    def _bound_text(self, key: str, prompts: Iterable[Prompt]) -> None:
        now = sum(prompt.size for prompt in prompts if prompt.has_text)
        self._total_bytes += now - self._text_bytes.get(key, 0)
        self._text_bytes[key] = now
        if self._total_bytes <= self._max_text_bytes:
            return
        for other in list(self._sessions):
            remembered = self._sessions[other]
            if other == key:  # this session alone is too large, so only its newest prompt keeps its text
                remembered.prompts = deque(
                    (prompt.without_text() if at else prompt for at, prompt in enumerate(remembered.prompts)),
                    MAX_PROMPTS,
                )
                kept_bytes = sum(prompt.size for prompt in remembered.prompts if prompt.has_text)
                self._total_bytes += kept_bytes - self._text_bytes.get(other, 0)
                self._text_bytes[other] = kept_bytes
                break
            remembered.prompts = deque((prompt.without_text() for prompt in remembered.prompts), MAX_PROMPTS)
            self._total_bytes -= self._text_bytes.pop(other, 0)
            if self._total_bytes <= self._max_text_bytes:
                break


def repeated_bytes(reading: Reading) -> int:
    """The bytes at the beginning of a prompt that repeat the earlier prompt of its lineage."""
    if reading.before is None:
        return 0
    return reading.broken.kept_bytes if reading.broken is not None else min(reading.before.size, reading.prompt.size)


def compared(prompt: Prompt, earlier: Iterable[Prompt]) -> Reading:
    """Compare a prompt with the one of `earlier` that it continues, or that it most likely continued before a break."""
    earlier = list(earlier)
    whole = max((one for one in earlier if one.begins(prompt)), key=lambda one: len(one.chain), default=None)
    if whole is not None:
        return Reading(prompt, whole, first_break(whole, prompt))
    candidates = [one for one in earlier if related(one, prompt)]
    if not candidates:
        return Reading(prompt, None, None)
    before = max(candidates, key=lambda one: (shared_bytes(one, prompt), one.sent_s))
    broken = first_break(before, prompt)
    continues = broken is not None or prompt.begins(before)
    return Reading(prompt, before if continues else None, broken)


def _opening(body: Mapping[str, Any]) -> int:
    """A hash of the model, the number of tools and the beginnings of the first two messages. It is valid in this
    process only.
    """
    messages = body.get("messages") or body.get("input") or body.get("contents") or ()
    first = [text_of(piece)[:_FEW_CHARS] for piece in messages[:2]] if isinstance(messages, list) else []
    tools = body.get("tools")
    return hash((str(body.get("model")), len(tools) if isinstance(tools, list) else 0, *first))


def _saved(prompt: Prompt) -> dict[str, Any]:
    return {
        "model": prompt.model,
        "settings": {name: f"{value:x}" for name, value in prompt.settings.items()},
        "sections": [
            {
                "name": section.name,
                "start": section.start,
                "digests": [f"{digest:x}" for digest in section.digests],
                "sizes": section.sizes,
                "roles": section.roles,
            }
            for section in prompt.sections
        ],
        "chain": prompt.chain,
        "marks": prompt.marked(),
        "tokens": prompt.tokens,
        "sent_s": prompt.sent_s,
    }


def _loaded(saved: Mapping[str, Any]) -> Prompt:
    tools, system, messages = (
        Section(
            str(section["name"]),
            int(section["start"]),
            None,
            [int(digest, 16) for digest in section["digests"]],
            [int(size) for size in section["sizes"]],
            [str(role) for role in section["roles"]],
        )
        for section in saved["sections"]
    )
    return Prompt(
        model=str(saved["model"]),
        settings={str(name): int(value, 16) for name, value in saved["settings"].items()},
        tools=tools,
        system=system,
        messages=messages,
        tools_order=0,
        chain=[int(value) for value in saved["chain"]],
        set_to=None,
        marks={str(name): str(value) for name, value in saved["marks"].items()},
        tokens=int(saved["tokens"]),
        sent_s=float(saved["sent_s"]),
    )
