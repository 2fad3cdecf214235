"""Keeps operators' drain orders on disk, so that they outlast a restart of the proxy.

The small file `drains.json` in the state folder maps engine ids to the unix times of the orders. The process that gets
an order writes a whole new file beside the old one and renames it. The orders of engines that have left stay in the
file, so an engine that leaves and joins again still drains. The file keeps the newest `MAX_ORDERS` orders.
"""

from pathlib import Path
from typing import Final

from warmroute_proxy.server.base.files import read_kept, write_kept

FILE: Final = "drains.json"
MAX_BYTES: Final = 1_048_576
MAX_ORDERS: Final = 2_048


def load(state_dir: Path) -> dict[str, float]:
    """The orders in the file; empty if there is no file, or if it cannot be read, which is logged."""
    lost = ", so no engine drains by an earlier order"
    return read_kept(state_dir / FILE, dict[str, float], {}, max_bytes=MAX_BYTES, lost=lost)


def note(state_dir: Path, engine_id: str, since_s: float | None) -> None:
    """Write the order for one engine, or delete it if `since_s` is None."""
    since = load(state_dir)
    since.pop(engine_id, None)
    if since_s is not None:
        since[engine_id] = since_s
    newest = sorted(since.items(), key=lambda order: order[1])[-MAX_ORDERS:]
    save(state_dir, dict(newest))


def save(state_dir: Path, since: dict[str, float]) -> None:
    """Write the orders. A failure is logged; the orders then hold only until the proxy ends."""
    write_kept(state_dir / FILE, since)
