"""Reads a file that a user got from others: only a regular file, unpacked from gzip, and up to a limit of bytes.

Every fault raises `UnreadableFile`, which names the file, the fault and the remedy. Only the bytes that a call returns
are held in memory.
"""

import gzip
import zlib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from warmroute.files.regular import open_regular

GZIP: Final = b"\x1f\x8b"


class UnreadableFile(ValueError):
    """A file that cannot be read; the message names the file, the place and the remedy."""


class GivenFile:
    """The bytes of a file from its beginning, as a context manager."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """`max_bytes`: the limit of unpacked bytes. Raises: UnreadableFile."""
        self.path = path
        self._left = self._max_bytes = max_bytes
        try:
            self._outer = open_regular(path)
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from None
        except ValueError:
            advice = "it is not a regular file; save what it gives to a file, and name that one"
            raise self._unreadable(advice) from None
        self._file: BufferedReader | gzip.GzipFile = self._outer
        self._size = "bytes"
        if self._outer.peek(2)[:2] == GZIP:
            self._file = gzip.GzipFile(fileobj=self._outer)
            self._size = "unpacked bytes"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._outer.close()

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end of the file only. Raises: UnreadableFile."""
        return self._given(self._file.read, size)

    def readline(self, size: int) -> bytes:
        """The next line with its line break, or the first `size` bytes of a longer line. Raises: UnreadableFile."""
        return self._given(self._file.readline, size)

    def _given(self, source: Callable[[int], bytes], size: int) -> bytes:
        try:
            found = source(min(size, self._left + 1))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            done = self._max_bytes - self._left
            reason = f"its gzip is cut off or damaged after {done:,} {self._size} ({error}); get the file again"
            raise self._unreadable(reason) from None
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from None
        self._left -= len(found)
        if self._left < 0:
            raise self._unreadable(f"it has more than {self._max_bytes:,} {self._size}; split it")
        return found

    def _unreadable(self, reason: str) -> UnreadableFile:
        return UnreadableFile(f"{self.path} cannot be read: {reason}")


def given_bytes(path: Path, max_bytes: int) -> bytes:
    """The content of a file. Raises: UnreadableFile."""
    with GivenFile(path, max_bytes) as file:
        return file.read(max_bytes + 1)
