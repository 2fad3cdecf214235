"""What sources named last, in the state folder, so that their engines are there at once after a restart.

One small file, `discovered.json`: source -> the members of its [[engine]] tables, with the paths of key files and not
their content. Each process writes it whole, beside the old one, and renames it: all of them find the same.
"""

import logging
import os
from pathlib import Path
from typing import Any, Final

import msgspec

FILE: Final = "discovered.json"
MAX_BYTES: Final = 16_777_216

Engines = dict[str, list[dict[str, Any]]]
log = logging.getLogger(__name__)


def load(state_dir: Path) -> Engines:
    """What was kept; nothing where it cannot be read, which is logged."""
    path = state_dir / FILE
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=Engines)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.error("%s cannot be read, so no engine is known before its source answers: %s", path, error)
        return {}


def save(state_dir: Path, engines: Engines) -> None:
    """Keep it. Where that fails, which is logged, the engines are not known after a restart."""
    path = state_dir / FILE
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        draft.write_bytes(msgspec.json.encode(engines))
        draft.replace(path)
    except (OSError, TypeError) as error:
        log.error("%s cannot be written: %s", path, error)
        draft.unlink(missing_ok=True)
