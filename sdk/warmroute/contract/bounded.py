"""Stores entries in bounded tables: the entry that was stored longest ago makes room for a new one."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def put(table: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Store an entry as the newest, and drop the oldest one if the table has more than `most`."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
