"""The conversation of a connection, kept once, as the messages of chat that the next request begins with.

A response ends a conversation as far as it has come: what the client has sent, and what the model has answered, as if
the client had sent it back. A turn that continues it brings new items only. They are read with what the items before
mean for them (`ReadItems`), and their messages are put behind, so the body of the chat is, byte for byte, that of a
request with the whole input.

Each conversation has a buffer of its own. A turn adds to it once it has ended well, so one that fails leaves nothing;
another line of turns that continues it gets a copy. It is kept up to `MAX_KEPT_BYTES`, and continued while a body of
its shape would be read in the event loop (`is_light`), since each turn is such a body.
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
    """The messages of a conversation but for those of `instructions`, which each request brings anew."""

    __slots__ = ("_counted_bytes", "_messages", "_objects", "read")

    def __init__(self, messages: bytes | bytearray = b"", read: ReadItems | None = None) -> None:
        """`messages`: with commas between them; `read`: what they mean for what follows, None if there are none."""
        self._messages = bytearray(messages)
        self._counted_bytes = self._objects = 0  # of the messages, and at least as many objects as are there
        self.read = read

    @property
    def size_bytes(self) -> int:
        """Of its messages, of the model's message that is still open, and of the ids of its calls."""
        read = self.read
        if read is None:
            return 0
        return len(self._messages) + read.size_bytes

    @property
    def is_light(self) -> bool:
        """Whether a turn that continues it has few enough objects to be read in the event loop. They are counted here:
        a client that sends all of it again never asks.
        """
        self._objects += self._messages.count(b'{"', self._counted_bytes)  # in a text, a quote is escaped
        self._counted_bytes = len(self._messages)
        return self._objects <= most_brackets(self._counted_bytes)

    @property
    def messages(self) -> Piece:
        """The messages as JSON, with commas between them: the buffer itself, which the end of a turn adds to."""
        return self._messages

    def copy(self) -> "ResponsesConversation":
        return ResponsesConversation(self._messages, self.read)

    def append(self, messages: Sequence[bytes], read: ReadItems) -> None:
        if self._messages and messages:
            self._messages += b","
        self._messages += b",".join(messages)
        self.read = read


class Continued(NamedTuple):
    """What a turn adds to a conversation, once it has ended well."""

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
        """The same, and with what the model has answered: the items of a response. Raises: BadRequest."""
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
    """Translate a request that continues a conversation, or begins one; what it adds to the conversation.

    `asks`: whether the model is to answer; else no body is made. Raises: BadRequest; OtherScope, if the conversation
    was read by others' rules.
    """
    reading = RequestReading(members, seal, texts_of, work, None if before is None else before.read)
    reader = reading.read_input(items, may_be_empty=before is not None or not asks)
    more = Continued(before or ResponsesConversation(), reader.messages, reader.read_items())
    if not asks:
        return reading.request([]), more
    messages: list[Piece] = [each for each in (more.before.messages, *reader.messages) if each]
    if not reading.lead and not messages:
        raise BadRequest("input", "holds nothing that a model can be asked")
    return reading.request(messages), more
