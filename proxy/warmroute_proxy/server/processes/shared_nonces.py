"""Nonces that any process of a proxy has accepted: two tables in shared memory, under a lock of the operating system.

This is the only lock between processes: if two of them get one nonce at the same time, one must refuse it. Only
forwards from other regions' proxies take the lock, for some microseconds. The lock is a record lock on a file in
memory, and the system releases it when its process is killed.

A nonce is kept for at least `KEEP_S` and at most twice that: of the two tables, the older one is emptied to become the
newer. A table holds hashes of nonces, each in the first free slot from the one that the hash points to. Limits: a table
takes three quarters of `ENTRIES`, so that a search stays short; beyond that, forwards are refused. The era of the
tables never goes back. An old era, read before the wait for the lock or from a clock that was put back, would empty
both tables, and a nonce could be used twice.
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
    """The tables of nonces, made before the processes are forked."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._lock = os.memfd_create("warmroute-nonces")
        self._words = memoryview(mmap.mmap(-1, 8 * (2 + 2 * entries))).cast("Q")
        self._entries = entries

    def spend(self, nonce: str, now: float) -> bool | None:
        """Use a nonce: True the first time, False if any process has accepted it before, None if the table is full."""
        key = xxh3_64_intdigest(nonce.encode()) or 1  # 0 is a free slot
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            return self._spend(key, max(int(now // KEEP_S), self._words[_ERA]))
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._lock)

    def _spend(self, key: int, era: int) -> bool | None:
        words = self._words
        if words[_ERA] != era:
            self._begin(era)
        newer, older = self._table(era), self._table(era + 1)
        slot = self._find(newer, key)
        if words[slot] or words[self._find(older, key)]:
            return False
        if words[_COUNT] >= self._entries * 3 // 4:
            return None
        words[slot] = key
        words[_COUNT] += 1
        return True

    def _begin(self, era: int) -> None:
        """Empty the table that becomes the newer one, and also the other one if its nonces are out of date."""
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
        """The slot of a key, or the free slot where it would be."""
        words, entries = self._words, self._entries
        at = key % entries
        while words[table + at] not in (0, key):
            at = (at + 1) % entries
        return table + at
