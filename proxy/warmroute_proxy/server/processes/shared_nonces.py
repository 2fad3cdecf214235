"""Keeps the nonces of forwarded requests that any process of a proxy has accepted, in shared memory under a lock.

A nonce is a random number that makes a forwarded request valid only once. If two processes get one nonce at the same
time, one of them must refuse it, which needs a lock: the only one between processes. Only forwards from other regions'
proxies take the lock, for a few microseconds. It is a record lock on a file in memory, which the operating system
releases when the process that holds it is killed.

A nonce is kept for at least `KEEP_S` and at most twice as long. There are two tables; after each `KEEP_S` (an era), the
older table is emptied and becomes the newer one. A table holds hashes of nonces, each in the first free slot from the
slot on to which the hash points. Limit: at most three quarters of the `ENTRIES` slots of a table are used, so that
searches stay short; beyond that, forwards are refused. The era of the tables never goes back. Otherwise an old era,
read before the wait for the lock or from a clock that was set back, would empty both tables, and a nonce could be used
twice.
"""

import fcntl
import mmap
import os
from typing import Final

from xxhash import xxh3_64_intdigest

KEEP_S: Final = 60.0
ENTRIES: Final = 2**18

_ERA, _COUNT = range(2)  # the two words before the tables


class SharedNonces:
    """The tables of nonces, made before the processes are forked."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._lock = os.memfd_create("warmroute-nonces")
        self._words = memoryview(mmap.mmap(-1, 8 * (2 + 2 * entries))).cast("Q")
        self._entries = entries

    def spend(self, nonce: str, now: float) -> bool | None:
        """Use a nonce. Returns True if it is new, False if any process has used it, None if the table is full."""
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
        """Empty the table that becomes the newer one, and also the other table if all its nonces are out of date."""
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
        """The slot that has a key, or the free slot into which the key would go."""
        words, entries = self._words, self._entries
        at = key % entries
        while words[table + at] not in (0, key):
            at = (at + 1) % entries
        return table + at
