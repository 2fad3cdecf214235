"""Operators' drain orders on disk, so that they hold over a restart of the proxy.

They are one small file in the state folder, `drains.json`: engine id -> since which unix time. The process that gets an
order writes the whole file beside the old one and renames it. Engines that are not there now are in it too: an engine
that leaves and joins again drains still. It has the newest `MAX_ORDERS` orders.
"""

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "drains.json"
MAX_BYTES: Final = 1_048_576
MAX_ORDERS: Final = 2_048

log = logging.getLogger(__name__)


def load(state_dir: Path) -> dict[str, float]:
    """The orders in the file. Without a file, or where it cannot be read (which is logged), there are none."""
    path = state_dir / FILE
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=dict[str, float])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.error("%s cannot be read, so no engine drains by an earlier order: %s", path, error)
        return {}


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
    path = state_dir / FILE
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        draft.write_bytes(msgspec.json.encode(since))
        draft.replace(path)
    except OSError as error:
        log.error("drain orders will be lost at a restart: %s", error)
        draft.unlink(missing_ok=True)
