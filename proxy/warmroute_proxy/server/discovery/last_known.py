"""Keeps the engines that sources last named in the state folder, so that they are there at once after a restart.

The small file `discovered.json` maps each source to the keys of its [[engine]] tables, which name key files but do not
contain the keys in them. Each process writes a whole new file beside the old one and renames it. All processes find the
same engines, so it does not matter which process writes last.
"""

from pathlib import Path
from typing import Any, Final

from warmroute_proxy.server.base.files import read_kept, write_kept

FILE: Final = "discovered.json"
MAX_BYTES: Final = 16_777_216

Engines = dict[str, list[dict[str, Any]]]


def load(state_dir: Path) -> Engines:
    """Source -> the engines that were kept; empty if the file cannot be read, which is logged."""
    lost = ", so no engine is known before its source answers"
    return read_kept(state_dir / FILE, Engines, {}, max_bytes=MAX_BYTES, lost=lost)


def save(state_dir: Path, engines: Engines) -> None:
    write_kept(state_dir / FILE, engines)
