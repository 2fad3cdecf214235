"""A large body, kept where another process of this machine can read it: memory without a name, known by a descriptor.

The reading of a large body would hold the event loop for a tenth of a second and more, so another process does it.
Nothing is copied for that: what the socket brings is put here, and the other process maps the same pages.
"""

import mmap
import os
from collections.abc import Iterable
from typing import Final

LARGE_BYTES: Final = 2_097_152
"""Smaller bodies are read in the event loop: 3 ms per MB here, and three times that on a slow machine."""

MAX_SHARED: Final = 64
"""Large bodies at a time; further ones are read in the event loop.

Each has two descriptors until it is read, in the place of those that its client's request will have at engines, and one
from then on.
"""


class SharedBytes:
    """Bytes that grow. `view` once no more come."""

    _held = 0  # by this process

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of memory, and closed with this object. Raises: OSError."""
        self.size = 0
        self.sha256: str | None = None
        """In hex digits, once another process has read them."""

        self._descriptor = descriptor
        SharedBytes._held += 1
        os.ftruncate(descriptor, 2 * LARGE_BYTES)
        self._map = mmap.mmap(descriptor, 2 * LARGE_BYTES)

    @classmethod
    def of(cls, pieces: Iterable[bytes | bytearray]) -> "SharedBytes | None":
        """The pieces so far; None where there are many already, or the system gives no descriptor or no memory."""
        if cls._held >= MAX_SHARED:
            return None
        try:
            shared = cls(os.memfd_create("warmroute-body", os.MFD_CLOEXEC))
            for piece in pieces:
                shared.add(piece)
        except OSError:
            return None
        return shared

    def add(self, piece: bytes | bytearray) -> None:
        """Put a piece behind the others."""
        end = self.size + len(piece)
        if end > len(self._map):
            self._map.resize(max(end, 2 * len(self._map)))
        self._map[self.size : end] = piece
        self.size = end

    @property
    def path(self) -> str:
        """Where another process of this user finds them while this object lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def view(self) -> memoryview:
        """All of them; nothing can be added any more."""
        return memoryview(self._map)[: self.size]

    def rewritten(self, size: int) -> None:
        """The other process has put as many bytes in their place. No view of them may be left."""
        if size > len(self._map):
            self._map.resize(size)
        self.size = size

    def was_read(self, sha256: str) -> None:
        """The other process has read them; it does not find them any more."""
        self.sha256 = sha256
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        SharedBytes._held -= 1
        self._close()
