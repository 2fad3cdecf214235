"""A large body in memory that another process of this machine can read. A descriptor stands for the unnamed memory.

Parsing a large body would hold the event loop for a tenth of a second or longer, so another process parses it. This
needs no further copy: the bytes from the socket are put here, and the other process reads the same pages.

The bytes are written to the descriptor, not copied into a memory map, because the first access to each page of a map
costs as much as the copy itself.
"""

import mmap
import os
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar, Final

LARGE_BYTES: Final = 2_097_152
"""Smaller bodies are parsed in the event loop unless they are dense (have many JSON values for their size). Parsing
takes 3 ms a MB here, and thrice as long on a slow machine.
"""

MAX_UNREAD: Final = 64
"""How many bodies may wait until another process reads them, each with two descriptors. A tenant may hold at most as
many places as are free. So a single tenant holds at most half of the places, and the next tenant always finds room.
Further bodies are refused.
"""

MAX_MAPPED: Final = 64
"""How many bodies may stay in their memory maps after they were read, each with one descriptor. Further bodies are
copied.
"""


class SharedBytes:
    """Bytes that grow by `add`, until they are read through `view`."""

    _unread: ClassVar[Counter[str]] = Counter()  # tenant -> its bodies in this process that wait to be read
    _mapped: ClassVar[int] = 0

    def __init__(self, descriptor: int, tenant: str) -> None:
        """`descriptor`: the memory's descriptor, which this object closes."""
        self.size = 0
        self.sha256: str | None = None
        """The digest of the bytes in hex digits; None until another process has read them."""

        self._descriptor = descriptor
        self._tenant = tenant
        self._copy: bytes | None = None
        self._unread[tenant] += 1
        SharedBytes._mapped += 1
        self._map: mmap.mmap | None = None  # made when all bytes are there

    @classmethod
    def of(cls, pieces: Iterable[bytes | bytearray], tenant: str) -> "SharedBytes | None":
        """Shared bytes that begin with the pieces of a tenant's body. None if the tenant has too many bodies here, or
        the system gives no descriptor or no memory.
        """
        if cls._unread[tenant] >= MAX_UNREAD - cls._unread.total():
            return None
        try:
            shared = cls(os.memfd_create("warmroute-body", os.MFD_CLOEXEC), tenant)
            for piece in pieces:
                shared.add(piece)
        except OSError:
            return None
        return shared

    def add(self, piece: bytes | bytearray) -> None:
        """Append a piece. Raises: OSError."""
        rest = memoryview(piece)
        while rest:
            written = os.pwrite(self._descriptor, rest, self.size)
            self.size += written
            rest = rest[written:]

    @property
    def path(self) -> str:
        """The path by which another process of this user can open the bytes while this object lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def view(self) -> memoryview:
        """All bytes. Afterwards no more can be added."""
        return memoryview(self._mapped_bytes() if self._copy is None else self._copy)[: self.size]

    def rewritten(self, size: int) -> None:
        """Record that the other process has replaced the bytes by `size` bytes. No view of the old bytes may exist."""
        self._unmap()
        self.size = size

    def was_read(self, sha256: str) -> None:
        """Record that the other process has read the bytes, and close the descriptor. No view of the bytes may exist.

        `sha256`: the digest of the bytes.
        """
        self.sha256 = sha256
        found = self._mapped_bytes()
        self._close()
        if SharedBytes._mapped > MAX_MAPPED:
            self._copy = found[: self.size]
            self._unmap()
            SharedBytes._mapped -= 1

    def _mapped_bytes(self) -> mmap.mmap:
        if self._map is None:
            self._map = mmap.mmap(self._descriptor, self.size, prot=mmap.PROT_READ)
        return self._map

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        os.close(descriptor)
        self._unread[self._tenant] -= 1
        if not self._unread[self._tenant]:
            del self._unread[self._tenant]

    def _unmap(self) -> None:
        found, self._map = self._map, None
        if found is not None:
            found.close()

    def __del__(self) -> None:
        self._close()
        if self._copy is None:
            SharedBytes._mapped -= 1  # the map is freed with its last view
