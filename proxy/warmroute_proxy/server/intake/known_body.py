"""Keeps the last bodies of a caller, so that only the new messages of its next bodies have to be read.

A *body template* is what bodies of a caller have in common: all bytes before and after their messages. A *known body*
is a template with all that was found when its first body was read. Its *conversation* is the last body that matched the
template, with what was read of its messages. If the next body begins with the bytes of that conversation, only the
bytes after these are read: a comparison is twenty times as fast as a parser and a hash. The comparison is exact,
because a body must not reach an engine merely by resembling a body that was checked.

`intake.read_whole` can read all these bodies, too, with equal results, as a property test checks. With `read_whole`
alone, a chat of 2 KB takes 13 % more instructions, and an agent's request of 190 KB takes 3.3 times as many
(`python -m bench instructions`, w1 and w3).

Limits: a tail (the bytes after the messages) has at most `MAX_TAIL_BYTES`. A tail above `SHORT_TAIL_BYTES` is stored
once for all templates that have it, with `MAX_LONG_BYTES` in total, for `MAX_LONG` templates. Conversations have
`MAX_KEPT_BYTES` in total. Long tails and conversations are divided by tenant (`warmroute.contract.shares`): of the
tenant that has most, the least recently used is dropped first. Most bodies of conversations are also in
`core/placement/hot_prompts.py`, which refers to these bytes objects and does not copy them.
"""

from collections.abc import Callable
from typing import Final

from warmroute.contract.conversations import MAX_ASKED_BYTES
from warmroute.contract.shares import Division
from warmroute_proxy.core.prompt.addresses import Addresses
from warmroute_proxy.core.prompt.canonical import MAX_PARTS, MalformedPrompt
from warmroute_proxy.core.prompt.chain import Begun, Chain, Fingerprint, ToolsPrefix
from warmroute_proxy.core.prompt.fingerprint import fingerprint_messages, fingerprint_rest
from warmroute_proxy.server.intake.body import spaces_begin
from warmroute_proxy.server.intake.body_template import BodyTemplate
from warmroute_proxy.server.intake.parsed_request import ParsedRequest

MAX_KNOWN_BODIES: Final = 4  # of one caller
MAX_HEAD_BYTES: Final = 1024
MAX_TAIL_BYTES: Final = 262_144
SHORT_TAIL_BYTES: Final = 1024
MAX_LONG: Final = 8192
MAX_LONG_BYTES: Final = 33_554_432
MAX_MEMBERS: Final = 32
MAX_DECODED_BYTES: Final = 1024  # of a member that a known body keeps decoded, in ten times the memory
MIN_KNOWN_BYTES: Final = 16_384  # of messages; shorter messages are read again
MAX_KEPT_BYTES: Final = 67_108_864
MAX_MARKS: Final = 8
MAX_RETURNED: Final = 8  # users' messages that are kept for one mark

_BYTES_PER_CUT: Final = 96  # a hash and an end, each an int object in a list
_SPACE: Final = b" \t\r\n"


Check = Callable[[bytes | memoryview], None]


def no_check(unknown: bytes | memoryview) -> None:
    """Let anything pass."""


class Mark:
    """The end of one request's messages: the number of bytes before it, and what `Fingerprint` says of these bytes."""

    __slots__ = ("asked", "cuts", "digest", "length", "messages", "returned", "structural_bytes", "turn")

    def __init__(self, length: int, prompt: Fingerprint) -> None:
        self.length = length
        self.cuts = len(prompt.chain.hashes)
        self.messages = len(prompt.messages)
        self.structural_bytes = prompt.structural_bytes
        self.turn = prompt.turn
        self.digest = prompt.tools_system_digest
        _, _, asked = prompt.asked or (0, 0, b"")
        self.asked = prompt.asked if len(asked) <= MAX_ASKED_BYTES else None
        self.returned = prompt.returned[-MAX_RETURNED:]


class KnownConversation:
    """The last body of a template, and what was read of its messages."""

    __slots__ = ("chain", "marks", "messages", "opaque", "raw")

    def __init__(self, raw: bytes, prompt: Fingerprint, mark: Mark) -> None:
        self.raw = raw
        self.chain = prompt.chain
        self.messages = prompt.messages
        self.opaque = prompt.opaque
        self.marks = [mark]


class KnownBody:
    """A body template, and all that is known of every body that matches it."""

    __slots__ = (
        "conversation",
        "derives",
        "identity",
        "lineage",
        "parsed",
        "seed",
        "system_digest",
        "template",
        "tools",
    )

    def __init__(
        self,
        template: BodyTemplate,
        parsed: ParsedRequest,
        tools: ToolsPrefix,
        seed: int,
        identity: bytes,
        *,
        derives: bool,
    ) -> None:
        """`parsed`: the parsed request of the first body, without its prompt. `identity`: a part of the keys of
        lineages (conversation branches). `derives`: whether the request names no session, so that the session follows
        from the conversation which the messages continue.
        """
        self.template = template
        self.parsed = parsed
        self.tools = tools
        self.seed = seed
        self.identity = identity
        self.derives = derives
        self.system_digest = -1
        self.lineage = 0
        self.conversation: KnownConversation | None = None

    def forget(self) -> None:
        self.template.forget()
        self.conversation = None


class _Tail:
    """A long tail, and the number of templates that have it."""

    __slots__ = ("templates", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.templates = 0


def _tenant_of(body: KnownBody, _size: int) -> str:
    return body.parsed.tenant.name


class KnownBodies:
    """The long tails and the conversations of all known bodies."""

    def __init__(
        self,
        max_bytes: int = MAX_KEPT_BYTES,
        min_bytes: int = MIN_KNOWN_BYTES,
        max_long_bytes: int = MAX_LONG_BYTES,
    ) -> None:
        """`min_bytes`: messages of a smaller size are not compared but read again."""
        self._max_long_bytes = max_long_bytes
        self.min_bytes = min_bytes
        self.bytes = 0
        self._max_bytes = max_bytes
        self._sizes: dict[KnownBody, int] = {}  # sizes of conversations, the least recently used first
        self._division: Division[KnownBody, int] = Division(_tenant_of, lambda _, size: size)
        self._tails: dict[bytes, _Tail] = {}
        self._tail_bytes = 0
        self._long: dict[KnownBody, int] = {}  # known bodies with a long tail, and its bytes
        self._long_division: Division[KnownBody, int] = Division(_tenant_of, lambda _, size: size)

    def add(self, body: KnownBody) -> None:
        template = body.template
        if template.tail_bytes <= SHORT_TAIL_BYTES:
            return
        tail = self._tails.get(template.tail)
        if tail is None:
            tail = self._tails[template.tail] = _Tail(template.tail)
            self._tail_bytes += len(template.tail)
        tail.templates += 1
        template.tail = tail.text
        self._long[body] = template.tail_bytes
        division = self._long_division
        if division.begun or 2 * self._tail_bytes > self._max_long_bytes or 2 * len(self._long) > MAX_LONG:
            division.stored(body, self._long)
            while self._tail_bytes > self._max_long_bytes or len(self._long) > MAX_LONG:
                self._forget_tail(division.next_to_go())

    def _forget_tail(self, body: KnownBody) -> None:
        self._long_division.discard(body)
        del self._long[body]
        text = body.template.tail
        body.forget()
        tail = self._tails[text]
        tail.templates -= 1
        if not tail.templates:
            del self._tails[text]
            self._tail_bytes -= len(text)

    def read(self, body: KnownBody, raw: bytes, end: int, addresses: Addresses, check: Check = no_check) -> Fingerprint:
        """The fingerprint of the messages that end at `end`. `check` gets those of their bytes that were not read
        before.

        Raises: MalformedPrompt, if they are not one array of messages, and what `check` raises.
        """
        known = body.conversation
        start = body.template.start
        if known is not None:
            for mark in reversed(known.marks):
                stop = start + mark.length
                if stop < end and raw.startswith(memoryview(known.raw)[start:stop], start):
                    check(memoryview(raw)[stop:end])
                    return self._continued(body, known, mark, (raw, end, addresses))
        check(memoryview(raw)[start:end])
        prompt = fingerprint_messages(memoryview(raw)[start:end], body.tools, body.seed, addresses)
        if prompt.turn > 1:  # the prompt contains an answer, so the conversation is under way
            body.conversation = KnownConversation(raw, prompt, _mark(prompt, raw, start, end))
            self._keep(body, body.conversation)
        return prompt

    def _continued(
        self, body: KnownBody, known: KnownConversation, mark: Mark, asked: tuple[bytes, int, Addresses]
    ) -> Fingerprint:
        raw, end, addresses = asked
        start, chain, cuts = body.template.start, known.chain, mark.cuts
        begun = Begun(
            chain.hashes[:cuts],
            chain.ends[:cuts],
            mark.structural_bytes,
            mark.turn,
            mark.digest,
            mark.asked,
            list(mark.returned),
            known.messages[: mark.messages],
            known.opaque,
        )
        rest = raw[start + mark.length : end].strip(_SPACE)
        if rest == b"]":
            self._keep(body, known)
            return Fingerprint(
                Chain(begun.hashes, begun.ends), mark.structural_bytes, mark.turn, body.tools.digest, mark.digest,
                mark.asked, mark.returned, 1, begun.messages, known.opaque,
            )  # fmt: skip
        if rest[:1] != b",":
            raise MalformedPrompt("messages", "is not valid JSON")
        prompt = fingerprint_rest(b"[" + rest[1:], begun, body.tools, addresses)
        if len(prompt.chain.hashes) > MAX_PARTS:  # maybe too many messages: `read_whole` counts them
            raise MalformedPrompt("messages", "may hold too many items")
        marks = known.marks[: known.marks.index(mark) + 1]
        known.marks = [*marks[-MAX_MARKS + 1 :], _mark(prompt, raw, start, end)]
        known.raw = raw
        known.chain = prompt.chain
        known.messages = prompt.messages
        known.opaque = prompt.opaque
        self._keep(body, known)
        return prompt

    def _keep(self, body: KnownBody, known: KnownConversation) -> None:
        """Make a conversation the most recently used, and drop others while all of them together are too large."""
        sizes = self._sizes
        size = len(known.raw) + _BYTES_PER_CUT * len(known.chain.hashes)
        self.bytes += size - sizes.pop(body, 0)
        sizes[body] = size
        division = self._division
        if division.begun or 2 * self.bytes > self._max_bytes:
            division.stored(body, sizes)
            while self.bytes > self._max_bytes:
                oldest = division.next_to_go()
                division.discard(oldest)
                self.bytes -= sizes.pop(oldest)
                oldest.conversation = None


def _mark(prompt: Fingerprint, raw: bytes, start: int, end: int) -> Mark:
    """The mark after the last of the messages that end at `end`."""
    end = spaces_begin(raw, end) - 1  # before the closing bracket
    return Mark(spaces_begin(raw, end) - start, prompt)
