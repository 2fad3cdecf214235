"""A request's body while it arrives in pieces, and the bound of the bytes of all such bodies of a listener."""

from typing import Final, Protocol

from warmroute_proxy.server.base.errors import Refusal

MAX_BODIES_BYTES: Final = 2**30  # of bodies that have arrived in part; beyond, the one that began first is refused
MAX_PIECES: Final = (
    256  # of a body that are kept one by one: each of a million small ones would take many times its bytes
)


class Reader(Protocol):
    """The connection that a body arrives on."""

    def stop_reading(self, refusal: Refusal) -> None:
        """Answer with `refusal`, and read no more."""


class IncomingBodies:
    """All bodies that have arrived in part."""

    def __init__(self) -> None:
        self.max_bytes = MAX_BODIES_BYTES
        self.held_bytes = 0
        self.begun: dict[IncomingBody, Reader] = {}
        """Each with its connection, in the order in which they began."""


class IncomingBody:
    """The pieces of one body that a connection has read."""

    def __init__(self, bodies: IncomingBodies) -> None:
        self._bodies = bodies
        self._pieces: list[bytes | bytearray] = []
        self._held_bytes = 0

    def add(self, piece: bytes, reader: Reader) -> None:
        """Add a piece that `reader` has read. Raises: Refusal, where all hold too much and this one began first."""
        pieces, bodies = self._pieces, self._bodies
        if not pieces:
            bodies.begun[self] = reader
        if len(pieces) < MAX_PIECES:
            pieces.append(piece)
        else:
            newest = pieces[-1]
            if isinstance(newest, bytearray):
                newest += piece
            else:
                pieces.append(bytearray(piece))
        self._held_bytes += len(piece)
        bodies.held_bytes += len(piece)
        if bodies.held_bytes > bodies.max_bytes:
            refusal = Refusal(503, "too many requests come slowly", code="overloaded", retry_after_s=1)
            oldest = next(iter(bodies.begun.values()))
            if oldest is reader:
                raise refusal
            oldest.stop_reading(refusal)

    def take(self, last_piece: bytes = b"") -> bytes:
        """Return the whole body and forget the pieces. `last_piece`: its last piece."""
        pieces = self._pieces
        if not pieces:
            return last_piece
        self.drop()
        if last_piece:
            pieces.append(last_piece)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def drop(self) -> None:
        """Forget the pieces."""
        if self._pieces:
            bodies = self._bodies
            bodies.begun.pop(self, None)
            bodies.held_bytes -= self._held_bytes
            self._pieces = []
            self._held_bytes = 0
