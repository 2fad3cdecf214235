"""A large body, kept where another process of this machine can read it: memory without a name, known by a descriptor.

The reading of a large body would hold the event loop for a tenth of a second and more, so another process does it.
Nothing is copied for that: what the socket brings is put here, and the other process reads the same pages.

What comes is written, not copied into a map: the first touch of each page of a map costs as much again as the copy.
"""

import mmap
import os
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar, Final

LARGE_BYTES: Final = 2_097_152
"""Smaller bodies are read in the event loop, unless they are dense: 3 ms per MB here, thrice that on a slow machine."""

MAX_UNREAD: Final = 64
"""Bodies at a time that another process is to read; each has two descriptors. A tenant may have as many as are free, so
one alone has half of them at most, and the next one always finds room. What finds none is refused.
"""

MAX_MAPPED: Final = 64
"""Bodies at a time that stay where they were read, each with one descriptor; further ones are copied."""


class SharedBytes:
    """Bytes that grow. `view` once no more come."""

    _unread: ClassVar[Counter[str]] = Counter()  # by tenant, in this process
    _mapped: ClassVar[int] = 0

    def __init__(self, descriptor: int, tenant: str) -> None:
        """`descriptor`: of memory, and closed with this object. Raises: OSError."""
        self.size = 0
        self.sha256: str | None = None
        """In hex digits, once another process has read them."""

        self._descriptor = descriptor
        self._tenant = tenant
        self._copy: bytes | None = None
        self._unread[tenant] += 1
        SharedBytes._mapped += 1
        self._map: mmap.mmap | None = None  # once all are there

    @classmethod
    def of(cls, pieces: Iterable[bytes | bytearray], tenant: str) -> "SharedBytes | None":
        """The pieces so far of a tenant's body; None if it has many already, or the system gives no descriptor or
        no memory.
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
        """Put a piece behind the others. Raises: OSError."""
        rest = memoryview(piece)
        while rest:
            written = os.pwrite(self._descriptor, rest, self.size)
            self.size += written
            rest = rest[written:]

    @property
    def path(self) -> str:
        """Where another process of this user finds them while this object lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def view(self) -> memoryview:
        """All of them; nothing can be added any more."""
        return memoryview(self._mapped_bytes() if self._copy is None else self._copy)[: self.size]

    def rewritten(self, size: int) -> None:
        """The other process has put as many bytes in their place. No view of them may be left."""
        self._unmap()
        self.size = size

    def was_read(self, sha256: str) -> None:
        """The other process has read them; it does not find them any more. No view of them may be left."""
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
            SharedBytes._mapped -= 1  # and the map goes with its last view
