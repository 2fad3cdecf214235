"""A request's body while it arrives in pieces."""

from typing import Final

MAX_PIECES: Final = (
    256  # of a body that are kept one by one: each of a million small ones would take many times its bytes
)


class IncomingBody:
    """The pieces of one body that a connection has read."""

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []

    def add(self, piece: bytes) -> None:
        """Add a piece."""
        pieces = self._pieces
        if len(pieces) < MAX_PIECES:
            pieces.append(piece)
            return
        newest = pieces[-1]
        if isinstance(newest, bytearray):
            newest += piece
        else:
            pieces.append(bytearray(piece))

    def take(self) -> bytes:
        """Return the whole body and forget the pieces."""
        pieces, self._pieces = self._pieces, []
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def drop(self) -> None:
        """Forget the pieces."""
        self._pieces = []
