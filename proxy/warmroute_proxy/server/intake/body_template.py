"""What the bodies of one caller have in common: all that stands around their messages.

A client sends the same model, settings and tools with each turn; only its messages change. A *frame* is the bytes
before the messages and those behind them, as they stood in a body that was read member by member, and what was found
in them. A body that begins and ends with the bytes of a frame, and whose rest is one JSON array of messages, is that
body with other messages: no name stands in it that was not checked, and each stands where it stood.

A *conversation* is the last body of a frame and what was read of its messages. Where the next one begins with the same
bytes, only what is behind them is read: a comparison is twenty times as fast as a parser and a hash. It is exact, since
a body must not reach an engine by resembling one that was checked.

Limits: tails of at most `MAX_TAIL_BYTES`, those above `SHORT_TAIL_BYTES` kept once for all frames, `MAX_LONG_BYTES` in
total and in `MAX_LONG` frames; conversations of `MAX_KEPT_BYTES` in total, the least lately used go first. Most of
their bodies are also kept to be computed elsewhere (`core/placement/hot_prompts.py`), which holds the same bytes.
"""

from typing import TYPE_CHECKING, Final

from warmroute_proxy.core.prompt.canonical import MAX_PARTS, MalformedPrompt
from warmroute_proxy.core.prompt.chain import Begun, Chain, Fingerprint, ToolsPrefix
from warmroute_proxy.core.prompt.fingerprint import fingerprint_messages, fingerprint_rest

if TYPE_CHECKING:
    from warmroute_proxy.server.intake.parsed_request import Intake

MAX_FRAMES: Final = 4  # of one caller
MAX_HEAD_BYTES: Final = 1024
MAX_TAIL_BYTES: Final = 262_144
SHORT_TAIL_BYTES: Final = 1024
MAX_LONG: Final = 8192
MAX_LONG_BYTES: Final = 33_554_432
MAX_MEMBERS: Final = 32
MAX_DECODED_BYTES: Final = 1024  # of a member that a frame keeps decoded, ten times as large; each frame has its own
MAX_DROP_SETS: Final = 16
MIN_KNOWN_BYTES: Final = 16_384  # of messages: shorter ones are read again
MAX_KEPT_BYTES: Final = 67_108_864
MAX_MARKS: Final = 8
JOINED_BYTES: Final = 65_536  # up to this size what is left of a body is copied into one piece

_BYTES_PER_CUT: Final = 96  # a hash and an end, each an integer of its own in a list
_SPACE: Final = b" \t\r\n"


class Mark:
    """The end of some turn's messages: bytes and cuts up to there, and what a fingerprint says of them."""

    __slots__ = ("cuts", "digest", "length", "structural_bytes", "turn")

    def __init__(self, length: int, cuts: int, structural_bytes: int, turn: int, digest: int) -> None:
        self.length = length
        self.cuts = cuts
        self.structural_bytes = structural_bytes
        self.turn = turn
        self.digest = digest


class Conversation:
    """The messages that a frame's last body had."""

    __slots__ = ("chain", "derived", "marks", "raw")

    def __init__(self, raw: bytes, chain: Chain, marks: list[Mark]) -> None:
        self.raw = raw
        self.chain = chain
        self.marks = marks
        self.derived: tuple[str, int] | None = None
        """Hash and key of the session, where it is derived from the messages."""


class BodyTemplate:
    """The bytes around the messages, and what follows from them for a caller."""

    __slots__ = (
        "close",
        "derives",
        "head",
        "identity",
        "intake",
        "known",
        "lineage",
        "names",
        "runs",
        "seed",
        "spans",
        "start",
        "system_digest",
        "tail",
        "tail_bytes",
        "tools",
    )

    def __init__(
        self,
        raw: bytes,
        start: int,
        end: int,
        close: int,
        spans: list[tuple[str, int, int]],
        tools: ToolsPrefix,
        seed: int,
        intake: "Intake",
        identity: bytes,
        *,
        derives: bool,
    ) -> None:
        """Of a body whose messages stand at `start` to `end`, whose last brace at `close`, with its members' places.

        `intake` is what was made of it; `identity` is what lineages of it are told apart by; `derives`: its session is
        derived from the messages.
        """
        self.head: bytes | tuple[()] = raw[:start]
        self.tail = raw[end - 1 :]  # with the bracket that ends the messages
        self.start = start
        self.tail_bytes = len(raw) - end
        self.close = len(raw) - close
        self.names = frozenset([name for name, _, _ in spans])
        size = len(raw)
        self.spans = [(name, a if a < end else a - size, b if b < end else b - size) for name, a, b in spans]
        self.runs: dict[frozenset[str], list[tuple[int, int]]] = {}
        self.tools = tools
        self.seed = seed
        self.intake = intake
        self.identity = identity
        self.derives = derives
        self.system_digest = -1
        self.lineage = 0
        self.known: Conversation | None = None

    def without(self, drop: frozenset[str]) -> list[tuple[int, int]]:
        """What is left of a body of this frame without the members in `drop`: members that stand together, as slices of
        any such body, which count from its end where they are behind the messages.
        """
        runs = self.runs.get(drop)
        if runs is None:
            runs = []
            joins = False
            for name, start, end in self.spans:
                if name in drop:
                    joins = False
                elif joins:
                    runs[-1] = (runs[-1][0], end)
                else:
                    runs.append((start, end))
                    joins = True
            if len(self.runs) < MAX_DROP_SETS:
                self.runs[drop] = runs
        return runs

    def rewritten(self, raw: bytes, drop: frozenset[str], add: bytes) -> list[bytes | memoryview]:
        """A body of this frame without the members in `drop` and with `add` before the last brace."""
        view = memoryview(raw)
        if drop.isdisjoint(self.names):
            return [view[: len(raw) - self.close], b",%b}" % add if add else b"}"]
        parts: list[bytes | memoryview] = [b"{"]
        for start, end in self.without(drop):
            parts.append(view[start:end])
            parts.append(b",")
        if add:
            parts.append(b"%b}" % add)
        elif len(parts) > 1:
            parts[-1] = b"}"
        else:
            parts.append(b"}")
        return parts if len(raw) > JOINED_BYTES else [b"".join(parts)]

    def forget(self) -> None:
        """No body is of this frame any more: none begins with one of no beginnings, whatever its bytes."""
        self.head, self.tail, self.known = (), b"", None


class Kept:
    """The long tails and the conversations of all frames."""

    def __init__(
        self,
        max_bytes: int = MAX_KEPT_BYTES,
        min_bytes: int = MIN_KNOWN_BYTES,
        max_long_bytes: int = MAX_LONG_BYTES,
    ) -> None:
        """`min_bytes`: of messages that are worth it."""
        self._max_long_bytes = max_long_bytes
        self.min_bytes = min_bytes
        self.bytes = 0
        self._max_bytes = max_bytes
        self._sizes: dict[BodyTemplate, int] = {}  # of conversations, the least lately used first
        self._tails: dict[bytes, bytes] = {}
        self._tail_bytes = 0
        self._long: list[BodyTemplate] = []

    def add(self, frame: BodyTemplate) -> None:
        """Keep a new frame's tail."""
        if frame.tail_bytes <= SHORT_TAIL_BYTES:
            return
        tail = self._tails.get(frame.tail)
        if tail is None:
            tail = frame.tail
            self._tail_bytes += len(tail)
        if self._tail_bytes > self._max_long_bytes or len(self._long) >= MAX_LONG:
            for long in self._long:
                long.forget()
            self._long = []
            self._tails = {}
            self._tail_bytes = len(tail)
        frame.tail = self._tails[tail] = tail
        self._long.append(frame)

    def read(self, frame: BodyTemplate, raw: bytes, end: int) -> tuple[Fingerprint, Conversation | None]:
        """The fingerprint of messages that end at `end`, and the conversation that they go on with.

        `MalformedPrompt` where they are not one array of messages.
        """
        known = frame.known
        start = frame.start
        if known is not None:
            for mark in reversed(known.marks):
                stop = start + mark.length
                if stop < end and raw.startswith(memoryview(known.raw)[start:stop], start):
                    return self._continued(frame, known, mark, raw, end), known
        prompt = fingerprint_messages(memoryview(raw)[start:end], frame.tools, frame.seed)
        if prompt.turn > 1:  # what is derived from the first messages cannot change any more
            frame.known = Conversation(raw, prompt.chain, [_mark(prompt, raw, start, end)])
            self._keep(frame, frame.known)
        return prompt, None

    def _continued(self, frame: BodyTemplate, known: Conversation, mark: Mark, raw: bytes, end: int) -> Fingerprint:
        start, chain, cuts = frame.start, known.chain, mark.cuts
        begun = Begun(chain.hashes[:cuts], chain.ends[:cuts], mark.structural_bytes, mark.turn, mark.digest)
        rest = raw[start + mark.length : end].strip(_SPACE)
        if rest == b"]":
            self._keep(frame, known)
            return Fingerprint(
                Chain(begun.hashes, begun.ends), mark.structural_bytes, mark.turn, frame.tools.digest, mark.digest, []
            )
        if rest[:1] != b",":
            raise MalformedPrompt("messages", "is not valid JSON")
        prompt = fingerprint_rest(b"[" + rest[1:], begun, frame.tools)
        if len(prompt.chain.hashes) > MAX_PARTS:  # a cut a message at least: there may be too many, so they are counted
            raise MalformedPrompt("messages", "may hold too many items")
        marks = known.marks[: known.marks.index(mark) + 1]
        known.marks = [*marks[-MAX_MARKS + 1 :], _mark(prompt, raw, start, end)]
        known.raw = raw
        known.chain = prompt.chain
        self._keep(frame, known)
        return prompt

    def _keep(self, frame: BodyTemplate, known: Conversation) -> None:
        """It is the last used now."""
        sizes = self._sizes
        size = len(known.raw) + _BYTES_PER_CUT * len(known.chain.hashes)
        self.bytes += size - sizes.pop(frame, 0)
        sizes[frame] = size
        while self.bytes > self._max_bytes:
            oldest = next(iter(sizes))
            self.bytes -= sizes.pop(oldest)
            oldest.known = None


def _mark(prompt: Fingerprint, raw: bytes, start: int, end: int) -> Mark:
    """The mark behind the last of the messages that end at `end`."""
    while raw[end - 1] in _SPACE:
        end -= 1
    end -= 1  # the bracket
    while raw[end - 1] in _SPACE:
        end -= 1
    cuts = len(prompt.chain.hashes)
    return Mark(end - start, cuts, prompt.structural_bytes, prompt.turn, prompt.tools_system_digest)
