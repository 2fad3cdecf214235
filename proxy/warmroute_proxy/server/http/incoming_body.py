"""A request's body while it arrives in pieces. A large one is put where another process can read it."""

from typing import Final

from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES, SharedBytes

MAX_PIECES: Final = (
    256  # of a body that are kept one by one: each of a million small ones would take many times its bytes
)


class IncomingBody:
    """The pieces of one body that a connection has read."""

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self._size = 0  # of the pieces
        self._shared: SharedBytes | None = None

    def add(self, piece: bytes, tenant: str) -> None:
        if self._shared is not None:
            self._shared.add(piece)
            return
        self._size += len(piece)
        if self._size > LARGE_BYTES:
            self._shared = shared = SharedBytes.of(self._pieces, tenant)
            if shared is not None:
                self._pieces = []
                shared.add(piece)
                return
        pieces = self._pieces
        if len(pieces) < MAX_PIECES:
            pieces.append(piece)
            return
        newest = pieces[-1]
        if isinstance(newest, bytearray):
            newest += piece
        else:
            pieces.append(bytearray(piece))

    def take(self) -> bytes | SharedBytes:
        pieces, shared = self._pieces, self._shared
        self.drop()
        if shared is not None:
            return shared
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def drop(self) -> None:
        self._pieces = []
        self._size = 0
        self._shared = None
