"""Keeps a WebSocket connection's conversation as chat messages, so that the next request can begin with them.

A conversation holds the items that the client has sent, and the model's answers as if the client had sent them back. A
turn that continues it brings new items only. The new items are read with the state that earlier items have left
(`ReadItems`), and their messages are appended. So the chat body is, byte for byte, the body of a request with the whole
input.

Each conversation has its own buffer. A turn appends to the buffer once the turn has ended well, so a failed turn leaves
nothing. A connection can run several streams (sequences) of turns; a stream that continues the conversation of another
stream gets a copy. A conversation above `MAX_KEPT_BYTES` is not kept. Each turn makes a body of the whole conversation.
So a conversation can be continued only while its body is simple enough to be read in the event loop (`is_light`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.chat_draft import Opens
from warmroute_proxy.dialects.raw_json import BadRequest, Members, Piece, encode
from warmroute_proxy.dialects.responses.items import ItemReader, ReadItems
from warmroute_proxy.dialects.responses.request import ChatRequest, RequestReading
from warmroute_proxy.dialects.work import TranslationWork, most_brackets
from warmroute_proxy.normalising.texts import Texts

MAX_KEPT_BYTES: Final = 2_097_152


class ResponsesConversation:
    """The messages of a conversation, without the message of `instructions`, which each request brings anew."""

    __slots__ = ("_counted_bytes", "_messages", "_objects", "read")

    def __init__(self, messages: bytes | bytearray = b"", read: ReadItems | None = None) -> None:
        """`messages`: JSON, separated by commas. `read`: the state that these leave for later items, if any."""
        self._messages = bytearray(messages)
        self._counted_bytes = self._objects = 0  # what `is_light` has counted
        self.read = read

    @property
    def size_bytes(self) -> int:
        """The size of the messages, and of what `read` holds: an open message of the model, tools, ids of calls."""
        read = self.read
        if read is None:
            return 0
        return len(self._messages) + read.size_bytes

    @property
    def is_light(self) -> bool:
        """Whether a turn that continues the conversation has few enough objects to be read in the event loop.

        Objects are counted here, and not in `append`: if a client sends the whole input again, no count is needed.
        """
        self._objects += self._messages.count(b'{"', self._counted_bytes)  # not in texts: strings escape their quotes
        self._counted_bytes = len(self._messages)
        pieces = () if self.read is None else self.read.open_pieces
        objects = self._objects + sum([max(1, piece.count(b'{"')) for piece in pieces])
        return objects <= most_brackets(self._counted_bytes + sum(map(len, pieces)))

    @property
    def messages(self) -> Piece:
        """The messages as JSON, separated by commas: the buffer itself, which grows when a turn ends."""
        return self._messages

    def copy(self) -> "ResponsesConversation":
        return ResponsesConversation(self._messages, self.read)

    def append(self, messages: Sequence[bytes], read: ReadItems) -> None:
        if self._messages and messages:
            self._messages += b","
        self._messages += b",".join(messages)
        self.read = read


class Continued(NamedTuple):
    """What a turn adds to a conversation once the turn has ended well. `before`: the conversation that it continues."""

    before: ResponsesConversation
    messages: list[bytes]
    read: ReadItems

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.messages)) + self.read.size_bytes

    def prepared(self) -> ResponsesConversation:
        self.before.append(self.messages, self.read)
        return self.before

    def answered(self, output: Sequence[dict[str, Any]], seal: Opens) -> ResponsesConversation:
        """The conversation after the turn and the model's answer, the items `output`. Raises: BadRequest."""
        _, rules_on = self.read.scope
        reader = ItemReader(seal, Texts(rules_on), TranslationWork(), self.read)
        reader.take([Raw(encode(item)) for item in output])
        self.before.append([*self.messages, *reader.messages], reader.read_items())
        return self.before


def continued(
    members: Members,
    items: list[Raw] | None,
    seal: Opens,
    texts_of: Callable[[str], Texts],
    work: TranslationWork,
    before: ResponsesConversation | None,
    *,
    asks: bool,
) -> tuple[ChatRequest, Continued]:
    """Translate a request that continues or begins a conversation, and return what it adds to the conversation.

    `asks`: whether the model should answer; if not, the chat request has no messages of the conversation.
    Raises: BadRequest; OtherScope, if `before` was read for another share group or by other normalising rules.
    """
    reading = RequestReading(members, seal, texts_of, work, None if before is None else before.read)
    reader = reading.read_input(items, may_be_empty=before is not None or not asks)
    more = Continued(before or ResponsesConversation(), reader.messages, reader.read_items())
    if not asks:
        return reading.request([]), more
    messages: list[Piece] = [each for each in (more.before.messages, *reader.messages, *reader.open_messages()) if each]
    if not reading.lead and not messages:
        raise BadRequest("input", "holds nothing that a model can be asked")
    return reading.request(messages), more
