"""A request's body while it arrives in pieces. A large body is written to memory that another process can read."""

from typing import Final

from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES, SharedBytes

MAX_PIECES: Final = 256  # kept as separate objects; a million small objects would take many times their bytes


class IncomingBody:
    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self._size = 0  # bytes in all pieces
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
