"""Recognises bodies that differ from an earlier body of the caller only in messages, by comparing all other bytes.

A client sends an unchanged model, settings and tools with each request; only its messages change. A *body template*
holds the bytes before and after the messages of a body that was read member by member. If another body begins and ends
with these bytes, and its rest is one JSON array of messages, then it differs only in its messages: all other members
are equal and at known places. `known_body.py` says how much work this saves.
"""

from typing import Final

from warmroute_proxy.server.intake.large_body import NamedSpan

MAX_DROP_SETS: Final = 16
COPIED_BYTES: Final = 65_536  # a rewritten body up to this size is copied into one piece


class BodyTemplate:
    __slots__ = ("_close", "_members", "_names", "_runs", "head", "start", "tail", "tail_bytes")

    def __init__(self, raw: bytes, start: int, end: int, close: int, members: list[NamedSpan]) -> None:
        """The messages of `raw` go from `start` to `end`. `close`: where its last brace is. `members`: all its
        members.
        """
        self.head: bytes | tuple[()] = raw[:start]
        self.tail = raw[end - 1 :]  # including the bracket that ends the messages
        self.start = start
        self.tail_bytes = len(raw) - end
        size = len(raw)
        self._close = size - close
        self._names = frozenset([each.name for each in members])
        # Places after the messages are counted from the end of the body.
        self._members = [
            NamedSpan(
                each.name,
                each.start if each.start < end else each.start - size,
                each.end if each.end < end else each.end - size,
            )
            for each in members
        ]
        self._runs: dict[frozenset[str], list[tuple[int, int]]] = {}

    def rewritten(self, raw: bytes, drop: frozenset[str], add: bytes) -> list[bytes | memoryview]:
        """A body of this template without the members in `drop`, and with `add` inserted before the last brace."""
        view = memoryview(raw)
        if drop.isdisjoint(self._names):
            return [view[: len(raw) - self._close], b",%b}" % add if add else b"}"]
        parts: list[bytes | memoryview] = [b"{"]
        for start, end in self._runs_without(drop):
            parts.append(view[start:end])
            parts.append(b",")
        if add:
            parts.append(b"%b}" % add)
        elif len(parts) > 1:
            parts[-1] = b"}"
        else:
            parts.append(b"}")
        return parts if len(raw) > COPIED_BYTES else [b"".join(parts)]

    def forget(self) -> None:
        """Do not match any body from now on: `startswith(())` is false for all bytes."""
        self.head, self.tail = (), b""

    def _runs_without(self, drop: frozenset[str]) -> list[tuple[int, int]]:
        """The slices of a body that hold all members except those in `drop`. Neighbouring members share a slice."""
        runs = self._runs.get(drop)
        if runs is None:
            runs = []
            joins = False
            for each in self._members:
                if each.name in drop:
                    joins = False
                elif joins:
                    runs[-1] = (runs[-1][0], each.end)
                else:
                    runs.append((each.start, each.end))
                    joins = True
            if len(self._runs) < MAX_DROP_SETS:
                self._runs[drop] = runs
        return runs
