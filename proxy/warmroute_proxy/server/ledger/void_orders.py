"""Keeps orders to void ledger rows in other regions in a file, until the other region has carried them out.

A request may be forwarded to its home, the region that has its session's cache. If the answer does not reach the
client, the row in the home region may still be charged. So the forwarding proxy orders the home to void that row. The
order is written before the request is served again, and removed when the home has confirmed it, which may be after
restarts of the two proxies. The file is rewritten once most of its lines belong to orders that were carried out.

Each process has its own file, `voids.jsonl`. The first process also takes over the files of processes that no longer
exist.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from warmroute_proxy.server.base.files import write_whole
from warmroute_proxy.server.ledger.journal import folder_of, processes_in

MAX_ORDERS: Final = 100_000  # beyond this, the oldest order is dropped, with an error in the log
REWRITE_LINES: Final = 1000  # lines of orders that were carried out, before the file is rewritten

_FILE: Final = "voids.jsonl"
_LOG: Final = logging.getLogger(__name__)


class VoidOrder(msgspec.Struct, frozen=True):
    """An order to void the row `id` in a region. `at_s`: when the answer was lost, in unix seconds."""

    id: str
    region: str
    tenant: str
    share_group: str
    at_s: float
    done: bool = False


_decode: Final = msgspec.json.Decoder(VoidOrder).decode


class VoidOrders:
    """The orders of one process. A disk error loses no order while the process lives."""

    def __init__(self, state_dir: Path, process: int, processes: int) -> None:
        self._path = folder_of(state_dir, process) / _FILE
        self._orders: dict[str, VoidOrder] = {}  # by id, in the order of sending
        self._done_lines = 0
        self._unwritten = False
        others = [other for other in processes_in(state_dir) if other >= processes] if process == 0 else []
        adopted = [folder_of(state_dir, other) / _FILE for other in others]
        for path in (self._path, *adopted):
            self._load(path)
        if self._orders or self._done_lines:
            self._rewrite()
        if not self._unwritten:
            for path in adopted:
                path.unlink(missing_ok=True)

    @property
    def waiting(self) -> int:
        return len(self._orders)

    def add(self, order: VoidOrder) -> None:
        """Keep an order. It is durable on return, unless the disk has refused it."""
        if len(self._orders) >= MAX_ORDERS:
            oldest = next(iter(self._orders))
            _LOG.error("too many voids wait: that of %s is dropped", oldest)
            del self._orders[oldest]
        self._orders[order.id] = order
        self._write(order)

    def of_region(self, region: str) -> list[VoidOrder]:
        """The orders for a region, in the order of sending."""
        return [order for order in self._orders.values() if order.region == region]

    def older_than(self, at_s: float) -> list[VoidOrder]:
        """The orders whose answers were lost before `at_s`."""
        return [order for order in self._orders.values() if order.at_s < at_s]

    def put_off(self, order: VoidOrder) -> None:
        if self._orders.pop(order.id, None) is not None:
            self._orders[order.id] = order

    def carried_out(self, order: VoidOrder) -> None:
        if self._orders.pop(order.id, None) is None:
            return
        self._done_lines += 1
        if self._done_lines >= max(REWRITE_LINES, len(self._orders)):
            self._rewrite()
        else:
            self._write(msgspec.structs.replace(order, done=True))

    def sweep(self) -> None:
        if self._unwritten:
            self._rewrite()

    def _load(self, path: Path) -> None:
        for order in _read(path):
            if order.done:
                self._done_lines += 1
                self._orders.pop(order.id, None)
            else:
                self._orders[order.id] = order

    def _write(self, order: VoidOrder) -> None:
        line = msgspec.json.encode(order) + b"\n"
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                whole = os.write(fd, line) == len(line)
            finally:
                os.close(fd)
        except OSError as error:
            _LOG.error("an order to void a row cannot be written: %s", error.strerror)
            whole = False
        self._unwritten = self._unwritten or not whole

    def _rewrite(self) -> None:
        lines = b"".join(msgspec.json.encode(order) + b"\n" for order in self._orders.values())
        try:
            write_whole(self._path, lines)
            self._unwritten, self._done_lines = False, 0
        except OSError as error:
            if not self._unwritten:
                _LOG.error("the orders to void rows cannot be written: %s", error.strerror)
            self._unwritten = True


def _read(path: Path) -> Iterator[VoidOrder]:
    """The orders in a file. A line that was only written in part is skipped."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        if line:
            try:
                yield _decode(line)
            except msgspec.DecodeError:
                _LOG.error("a line of %s is not an order", path)
