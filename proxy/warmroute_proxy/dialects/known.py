"""Caches translated messages and tools by their input bytes, because an agent sends all of them again with each turn.

A translation (from a client's API to chat completions) depends only on its input, so a cached one equals a new one, and
no result depends on the cache. An entry is found by a hash. Then the bytes are compared, so that a collision cannot
return another input's translation.

Limits: entries of at most `MAX_ENTRY_BYTES`, and `max_bytes` in total. A full cache is emptied.
"""

from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Raw
from xxhash import xxh3_64_intdigest

MAX_ENTRY_BYTES: Final = 262_144
MAX_BYTES: Final = 33_554_432
_PER_ENTRY_BYTES: Final = 512  # memory of the objects around the bytes

_T = TypeVar("_T")


class _Entry(NamedTuple, Generic[_T]):
    raw: bytes
    made: _T


class Known(Generic[_T]):
    """Translations by scope and input bytes. `scope`: all that a translation depends on besides these bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._found: dict[object, dict[int, _Entry[_T]]] = {}

    def get(self, scope: object, raw: Raw) -> _T | None:
        """The kept translation of these bytes, or None."""
        entries = self._found.get(scope)
        entry = None if entries is None else entries.get(xxh3_64_intdigest(raw))
        return None if entry is None or entry.raw != bytes(raw) else entry.made

    def keep(self, scope: object, raw: Raw, made: _T, made_bytes: int) -> None:
        """Keep `made` as the translation of these bytes. `made_bytes`: the size of `made`."""
        size = len(memoryview(raw)) + made_bytes + _PER_ENTRY_BYTES
        if size > MAX_ENTRY_BYTES:
            return
        self._bytes += size
        if self._bytes > self._max_bytes:
            self._found.clear()
            self._bytes = size
        self._found.setdefault(scope, {})[xxh3_64_intdigest(raw)] = _Entry(bytes(raw), made)
