"""Operators' drain orders on disk, so that they hold over a restart of the proxy too.

One small file in the state folder, `drains.json`: engine id -> since which unix time. It is written whole, beside and
then over the old one, with each order, by whichever process was told; only engines of the config are in it.
"""

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "drains.json"
MAX_BYTES: Final = 1_048_576

log = logging.getLogger(__name__)


def load(state_dir: Path) -> dict[str, float]:
    """The orders that stand; none where there is no such file, or it is not readable, which is said."""
    path = state_dir / FILE
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=dict[str, float])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.error("%s cannot be read, so no engine drains by an earlier order: %s", path, error)
        return {}


def save(state_dir: Path, since: dict[str, float]) -> None:
    """Keep the orders that stand now. Where that is not possible they hold as long as the proxy runs."""
    path = state_dir / FILE
    beside = path.with_suffix(f".{os.getpid()}")
    try:
        beside.write_bytes(msgspec.json.encode(since))
        beside.replace(path)
    except OSError as error:
        log.error("drain orders will not hold over a restart: %s", error)
        beside.unlink(missing_ok=True)
