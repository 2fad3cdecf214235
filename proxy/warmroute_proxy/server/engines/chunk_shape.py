"""What the chunks of one stream have in common: everything but a short text, and the size that depends on it."""

from typing import Final

MAX_SIZES: Final = 16  # of chunks, whose beginnings a shape keeps

_LINE_FEEDS: Final = 4  # of a chunk of one event with one line
_BEFORE_TEXT: Final = (b'"content":"', b'"text":"', b'"reasoning_content":"', b'"arguments":"')


class ChunkShape(dict[int, bytes | tuple[()]]):
    """How a chunk begins, up to its text, by its size without its `tail`; `()` for sizes that no chunk can have."""

    def __init__(self, digits: int, head: bytes, tail: bytes) -> None:
        """`digits` of the chunk's size, then `head`, the text, and `tail` with the end of the chunk."""
        super().__init__()
        self.tail = tail
        self.tail_bytes = len(tail)
        self.text_at = digits + 2 + len(head)
        self._digits = digits
        self._head = head

    def __missing__(self, key: int) -> bytes | tuple[()]:
        size = b"%x" % max(0, key + self.tail_bytes - self._digits - 4)
        if len(size) != self._digits or key < self.text_at:
            return ()
        begins = b"%b\r\n%b" % (size, self._head)
        if len(self) < MAX_SIZES:
            self[key] = begins
        return begins


def shape_of(chunk: bytes, digits: int) -> ChunkShape | None:
    """The shape of a whole chunk with one event, or None where it has no text between quotes. `digits`: how many its
    size has.
    """
    for name in _BEFORE_TEXT:
        start = chunk.find(name) + len(name)
        end = chunk.find(b'"', start)
        if start > len(name) and end > start:
            plain = chunk[end + 1] in b",}" and chunk[end - 1] != 0x5C and chunk.count(b"\n") == _LINE_FEEDS
            return ChunkShape(digits, chunk[digits + 2 : start], chunk[end:]) if plain else None
    return None
