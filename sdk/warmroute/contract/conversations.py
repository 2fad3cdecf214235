"""Which conversation a request without a session key continues, and the key of a new one.

A request *continues* a conversation of its tenant if it repeats the newest request of that conversation in full and
adds to it. Every other request begins a new conversation: a title, a compaction, a changed system prompt, another
branch. A request that equals the newest one and adds nothing also begins a new conversation, unless the earlier request
got no answer. The first texts of a prompt do not tell conversations apart, because agents put the same examples and
instructions there for all users.

One change is allowed. If the newest request ended with a user's message, the next request may contain that message
shortened and followed by an assistant's message. For example, aider adds a reminder to the last user's message, and
drops the reminder from the next request. The shortened message must be the beginning of the earlier one, in whole
words.

A request is given as a list of hashes. A *cut* is a position at which the request is hashed, such as the end of a
message: `hashes[i]` is the hash of the request up to cut i, so equal hashes mean equal beginnings. One look-up per cut
finds the longest beginning that is the whole newest request of a conversation. The part of a request before a user's
message is the *stem* of that message. An index by stem holds the messages that may come back shortened.

A key names one conversation. The key consists of a number and a name that is unique to this start of this process. So
processes of a proxy can send each other the requests that they note (`observe`), and no two conversations get the same
key.

Limits: `MAX_CONVERSATIONS`, divided by tenant (`shares`). The tenant that has most forgets its least recently continued
conversation, whose next request then begins a new one. Of conversations with the same newest request, `MAX_ALIKE` are
kept and the oldest is forgotten first. So a prompt that is sent again and again (a health check, samples) does not
drive out others. Messages that may come back shortened have at most `MAX_ASKED_BYTES` each and `MAX_TOTAL_BYTES` in
all, divided by tenant, too. Longer messages are recognised only if they come back in full.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from warmroute.contract.shares import Division

MAX_CONVERSATIONS: Final = 20_000
MAX_ALIKE: Final = 16
MAX_ASKED_BYTES: Final = 16_384
MAX_TOTAL_BYTES: Final = 16_777_216
MAX_COMPARED: Final = 32  # messages with one stem that are compared with a shortened message

_ESCAPED: Final = b"\\u"  # how JSON's escape of a non-ASCII letter begins


class Asked(NamedTuple):
    """A user's message in a request: the number of cuts before it, the hash of its stem, and its text."""

    cuts: int
    stem: int
    text: bytes


class Newest(NamedTuple):
    """The newest request of a conversation. `tip`: the hash of the whole request. `text`: the user's message that ends
    the request, if any and if short enough; `stem`: the hash of the stem of that message.
    """

    key: str
    tenant: str
    tip: int
    stem: int
    text: bytes


class Conversation:
    """One conversation. Each of its requests replaces `newest`."""

    __slots__ = ("newest", "number", "unanswered")

    def __init__(self, newest: Newest, number: int) -> None:
        self.newest = newest
        self.number = number
        self.unanswered = False

    @property
    def key(self) -> str:
        return self.newest.key

    def left_unanswered(self, tip: int) -> None:
        """Note that the request with hash `tip` got no answer, so that an equal request continues the conversation. A
        `tip` that is not the newest request's is ignored.
        """
        self.unanswered = self.unanswered or self.newest.tip == tip


class Conversations:
    """The newest requests of all conversations without a session key."""

    def __init__(
        self,
        name: str,
        send: Callable[[Newest, Collection[str] | None], None] | None = None,
        receive: Callable[[], None] | None = None,
        max_conversations: int = MAX_CONVERSATIONS,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        """`name`: a name that is unique to this start of this process. `send` gets each request that `of` notes, with
        the regions that may know of the request. `receive` runs before each look-up, and may call `observe`.
        """
        self._name = name
        self._send = send
        self._receive = receive
        self._max = max_conversations
        self._max_bytes = max_total_bytes
        self._half = max_conversations // 2
        self._half_bytes = max_total_bytes // 2
        self._bytes = 0
        self._begun = 0
        self._numbers = 0
        self._by_key: OrderedDict[str, Conversation] = OrderedDict()
        self._by_tip: dict[int, dict[int, Conversation]] = {}  # by number, the newest last
        self._by_stem: dict[int, list[tuple[bytes, int, Conversation]]] = {}  # sorted by text
        bytes_each = max_total_bytes // max_conversations
        self._division: Division[str, Conversation] = Division(
            lambda _, each: each.newest.tenant, lambda _, each: bytes_each + len(each.newest.text)
        )

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def changes(self) -> int:
        """The number of requests that were noted so far."""
        return self._numbers

    def newest(self) -> list[Newest]:
        """The newest request of each conversation, the least recently continued one first."""
        return [conversation.newest for conversation in self._by_key.values()]

    def of(
        self,
        tenant: str,
        hashes: Sequence[int],
        asked: Asked | None,
        returned: Sequence[Asked],
        regions: Collection[str] | None = None,
    ) -> Conversation:
        """Find or begin the conversation of a request, and note the request as its newest.

        `asked`: the user's message that ends the request. `returned`: user's messages followed by an assistant's.
        `regions`: the regions that may know of the request, or None for all.
        """
        if self._receive is not None:
            self._receive()
        found = self._continued(tenant, hashes, returned)
        if found is None:
            self._begun += 1
            key = f"d-{self._name}-{self._begun:x}"
        else:
            key = found.key
        newest = _newest(key, tenant, hashes[-1], asked)
        if self._send is not None:
            self._send(newest, regions)
        return self.observe(newest)

    def observe(self, newest: Newest) -> Conversation:
        """Note the newest request of a conversation, received by this process or by another one."""
        self._numbers += 1
        conversation = self._by_key.get(newest.key)
        if conversation is None:
            conversation = self._by_key[newest.key] = Conversation(newest, self._numbers)
        else:
            self._unlink(conversation)
            conversation.newest, conversation.number, conversation.unanswered = newest, self._numbers, False
            self._by_key.move_to_end(newest.key)
        alike = self._by_tip.setdefault(newest.tip, {})
        alike[conversation.number] = conversation
        if newest.text:
            insort(self._by_stem.setdefault(newest.stem, []), (newest.text, conversation.number, conversation))
            self._bytes += len(newest.text)
        if len(alike) > MAX_ALIKE:
            self._forget(next(iter(alike.values())))
        division = self._division
        if len(self._by_key) > self._half or self._bytes > self._half_bytes or division.begun:
            if newest.key in self._by_key:
                division.stored(newest.key, self._by_key)
            while len(self._by_key) > self._max or self._bytes > self._max_bytes:
                self._forget(self._by_key[division.next_to_go()])
        return conversation

    def _continued(self, tenant: str, hashes: Sequence[int], returned: Sequence[Asked]) -> Conversation | None:
        whole, cuts = self._repeated_whole(tenant, hashes)
        for asked in reversed(returned):
            if asked.cuts < cuts:
                break
            shortened = self._shortened(tenant, asked)
            if shortened is not None:
                return shortened
        return whole

    def _repeated_whole(self, tenant: str, hashes: Sequence[int]) -> tuple[Conversation | None, int]:
        """The conversation whose newest request is the longest that this request repeats, and the cuts in it."""
        by_tip = self._by_tip
        if by_tip.keys().isdisjoint(hashes):
            return None, 0
        end = len(hashes) - 1
        for at in range(end, -1, -1):
            for conversation in reversed(by_tip.get(hashes[at], {}).values()):
                if conversation.newest.tenant == tenant and (at < end or conversation.unanswered):
                    return conversation, at + 1
        return None, 0

    def _shortened(self, tenant: str, asked: Asked) -> Conversation | None:
        """The conversation whose newest request ends with this message and more text; of several, the one that ends
        with the shortest message.
        """
        stems = self._by_stem.get(asked.stem)
        if stems is None:
            return None
        at = bisect_left(stems, (asked.text,))
        found = None
        for text, _, conversation in stems[at : at + MAX_COMPARED]:
            if not text.startswith(asked.text):
                break
            fits = conversation.newest.tenant == tenant and _ends_a_word(text, len(asked.text))
            if fits and (found is None or len(text) < len(found.newest.text)):
                found = conversation
        return found

    def _unlink(self, conversation: Conversation) -> None:
        newest, number = conversation.newest, conversation.number
        alike = self._by_tip[newest.tip]
        del alike[number]
        if not alike:
            del self._by_tip[newest.tip]
        if newest.text:
            stems = self._by_stem[newest.stem]
            del stems[bisect_left(stems, (newest.text, number))]
            if not stems:
                del self._by_stem[newest.stem]
            self._bytes -= len(newest.text)

    def _forget(self, conversation: Conversation) -> None:
        self._unlink(conversation)
        self._division.discard(conversation.key)
        del self._by_key[conversation.key]


def _newest(key: str, tenant: str, tip: int, asked: Asked | None) -> Newest:
    if asked is None or len(asked.text) > MAX_ASKED_BYTES:
        return Newest(key, tenant, tip, 0, b"")
    return Newest(key, tenant, tip, asked.stem, asked.text)


def _ends_a_word(text: bytes, at: int) -> bool:
    """Whether cutting the text off at `at` removes something and divides no word."""
    return at < len(text) and not (_in_word(text[at - 1]) and (_in_word(text[at]) or text.startswith(_ESCAPED, at)))


def _in_word(byte: int) -> bool:
    return byte >= 0x80 or chr(byte).isalnum()
