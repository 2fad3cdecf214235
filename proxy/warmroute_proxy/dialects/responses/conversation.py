"""The conversation of a connection, kept once, as the messages of chat that the next request begins with.

A response ends a conversation as far as it has come: what the client has sent, and what the model has answered, as if
the client had sent it back. A turn that continues it brings new items only. They are read with what the items before
mean for them (`ReadItems`), and their messages are appended, so the body of the chat is, byte for byte, that of a
request with the whole input.

Messages are appended to one buffer and never changed. A conversation is some of the buffer, from its beginning; one
that is continued for a second time, as a fork is, gets a buffer of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw

from warmroute_proxy.dialects.raw_json import BadRequest, Members, encode
from warmroute_proxy.dialects.responses.items import ItemReader, Opens, ReadItems
from warmroute_proxy.dialects.responses.request import ChatRequest, RequestReading
from warmroute_proxy.dialects.work import Work
from warmroute_proxy.normalising.texts import Texts


class Conversation:
    """The messages of a conversation but for those of `instructions`, which each request brings anew."""

    __slots__ = ("_end", "_messages", "read")

    def __init__(self, messages: bytearray, read: ReadItems) -> None:
        """`messages`: with commas between them; `read`: what they mean for what follows."""
        self._messages = messages
        self._end = len(messages)
        self.read = read

    @property
    def size_bytes(self) -> int:
        """Of its messages, and of the model's message that is still open."""
        read = self.read
        return self._end + len(read.content) + sum(map(len, read.reasoning)) + sum(map(len, read.called))

    @property
    def messages(self) -> bytes:
        """The messages as JSON, with commas between them."""
        with memoryview(self._messages) as view:
            return bytes(view[: self._end])

    def appended(self, messages: Sequence[bytes], read: ReadItems) -> "Conversation":
        """The conversation with more messages."""
        buffer = self._messages
        if len(buffer) != self._end:  # another turn has appended to it
            buffer = buffer[: self._end]
        for message in messages:
            if buffer:
                buffer += b","
            buffer += message
        return Conversation(buffer, read)

    def answered(self, output: Sequence[dict[str, Any]], seal: Opens) -> "Conversation":
        """The conversation with what the model has answered: the items of a response."""
        _, rules_on = self.read.scope
        reader = ItemReader(seal, Texts(rules_on), Work(), self.read)
        reader.take([Raw(encode(item)) for item in output])
        return self.appended(reader.messages, reader.read_items())


def continued(
    members: Members,
    items: list[Raw] | None,
    seal: Opens,
    texts_of: Callable[[str], Texts],
    work: Work,
    before: Conversation | None,
    *,
    asks: bool,
) -> tuple[ChatRequest, Conversation]:
    """Translate a request that continues a conversation, or begins one; the conversation with its input.

    `asks`: whether the model is to answer. Raises: BadRequest; OtherScope, where the conversation was read by others'
    rules.
    """
    reading = RequestReading(members, seal, texts_of, work, None if before is None else before.read)
    reader = reading.read_input(items, may_be_empty=before is not None or not asks)
    if before is None:
        conversation = Conversation(bytearray(b",".join(reader.messages)), reader.read_items())
    else:
        conversation = before.appended(reader.messages, reader.read_items())
    messages = conversation.messages
    if asks and not reading.lead and not messages:
        raise BadRequest("input", "holds nothing that a model can be asked")
    return reading.request([messages] if messages else []), conversation
