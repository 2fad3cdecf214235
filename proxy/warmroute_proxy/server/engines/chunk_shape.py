"""The shape that chunks of one stream share: they differ only in a short text, and in the chunk size before it."""

from typing import Final

from warmroute_proxy.server.engines.sse import MAX_TEXT_BYTES

MAX_SIZES: Final = 16  # a shape keeps the beginnings of chunks of this many sizes


class ChunkShape(dict[int, bytes | tuple[()]]):
    """Maps the length of a whole chunk to the chunk's beginning, up to its text. It maps to `()` if a chunk of this
    length cannot have a text that counts as one token.
    """

    def __init__(self, digits: int, head: bytes, tail: bytes) -> None:
        """A chunk is its size in `digits` hex digits, `head`, the text, and `tail`, which includes the chunk's end."""
        super().__init__()
        self.tail = tail
        self.tail_bytes = len(tail)
        self.text_at = digits + 2 + len(head)
        self._textless_bytes = self.text_at + self.tail_bytes
        self._digits = digits
        self._head = head

    def __missing__(self, key: int) -> bytes | tuple[()]:
        size = b"%x" % max(0, key - self._digits - 4)
        if len(size) != self._digits or not 0 < key - self._textless_bytes <= MAX_TEXT_BYTES:
            return ()
        begins = b"%b\r\n%b" % (size, self._head)
        if len(self) < MAX_SIZES:
            self[key] = begins
        return begins
