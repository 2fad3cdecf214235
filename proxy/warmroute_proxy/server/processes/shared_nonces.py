"""Nonces that were seen by any process of a proxy: a table in memory that they share, under a lock of the system.

Here alone a lock is needed: of two processes that are shown one nonce at the same time, one must refuse. Forwards come
from other regions' proxies only, and hold it for some microseconds. It is a record lock on a file in memory, which the
system takes back from a process that is killed.

A nonce counts for at least `KEEP_S` and at most twice that: there are two tables, and the older one is emptied to
become the newer. An entry is the hash of a nonce, at the first free place from where its hash points. Limits: three
quarters of `ENTRIES` a table, so that a search stays short; beyond, forwards are refused.
"""

import fcntl
import mmap
import os
from typing import Final

from xxhash import xxh3_64_intdigest

KEEP_S: Final = 60.0
ENTRIES: Final = 2**18

_ERA, _COUNT = range(2)  # words in front of the tables


class SharedNonces:
    """Made before the processes are forked."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._lock = os.memfd_create("warmroute-nonces")
        self._words = memoryview(mmap.mmap(-1, 8 * (2 + 2 * entries))).cast("Q")
        self._entries = entries

    def spend(self, nonce: str, now: float) -> bool | None:
        """True if no process has seen it, and all have from now on; None if there is no room for it."""
        key = xxh3_64_intdigest(nonce.encode()) or 1  # 0 is a free place
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            return self._spend(key, int(now // KEEP_S))
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let the lock's file go."""
        os.close(self._lock)

    def _spend(self, key: int, era: int) -> bool | None:
        words = self._words
        if words[_ERA] != era:
            self._begin(era)
        newer, older = self._table(era), self._table(era + 1)
        place = self._find(newer, key)
        if words[place] or words[self._find(older, key)]:
            return False
        if words[_COUNT] >= self._entries * 3 // 4:
            return None
        words[place] = key
        words[_COUNT] += 1
        return True

    def _begin(self, era: int) -> None:
        """Empty the table that becomes the newer one, and the other one too if its time is over."""
        words = self._words
        emptied = [era] if words[_ERA] == era - 1 else [era, era + 1]
        for each in emptied:
            table = self._table(each)
            words[table : table + self._entries] = memoryview(bytes(8 * self._entries)).cast("Q")
        words[_COUNT] = 0
        words[_ERA] = era

    def _table(self, era: int) -> int:
        return 2 + era % 2 * self._entries

    def _find(self, table: int, key: int) -> int:
        """Where a key is, or the free place where it would be."""
        words, entries = self._words, self._entries
        at = key % entries
        while words[table + at] not in (0, key):
            at = (at + 1) % entries
        return table + at
