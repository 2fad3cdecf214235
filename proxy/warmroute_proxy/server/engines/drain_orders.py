"""Operators' drain orders on disk, so that they hold over a restart of the proxy.

They are one small file in the state folder, `drains.json`: engine id -> since which unix time. The process that gets an
order writes the whole file beside the old one and renames it. Engines that are not there now are in it too: an engine
that leaves and joins again drains still. It has the newest `MAX_ORDERS` orders.
"""

from pathlib import Path
from typing import Final

from warmroute_proxy.server.base.files import read_kept, write_kept

FILE: Final = "drains.json"
MAX_BYTES: Final = 1_048_576
MAX_ORDERS: Final = 2_048


def load(state_dir: Path) -> dict[str, float]:
    """The orders in the file. Without a file, or if it cannot be read (which is logged), there are none."""
    lost = ", so no engine drains by an earlier order"
    return read_kept(state_dir / FILE, dict[str, float], {}, max_bytes=MAX_BYTES, lost=lost)


def note(state_dir: Path, engine_id: str, since_s: float | None) -> None:
    """Add the order for one engine, or with None take it back. Those for others stay as they are."""
    since = load(state_dir)
    since.pop(engine_id, None)
    if since_s is not None:
        since[engine_id] = since_s
    newest = sorted(since.items(), key=lambda order: order[1])[-MAX_ORDERS:]
    save(state_dir, dict(newest))


def save(state_dir: Path, since: dict[str, float]) -> None:
    """Write the orders. Where that fails they hold until the proxy ends, which is logged."""
    write_kept(state_dir / FILE, since)
