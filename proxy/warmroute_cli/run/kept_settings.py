"""Writes the settings files of a program, and keeps the settings that the program or its user has added to them."""

import json
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

import tomli_w

from warmroute_proxy.server.base.files import write_whole

_FORMS: Final[dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]]] = {
    ".json": (json.loads, partial(json.dumps, indent=2)),
    ".toml": (tomllib.loads, tomli_w.dumps),
}


def write(path: Path, text: str) -> None:
    """Write a file, or set only the settings of `text` in a JSON or TOML file that is there. Raises: OSError.

    If that file cannot be read, it is kept beside the new one, and a line on stderr says so. A file in another form is
    written again with each start.
    """
    if path.suffix in _FORMS and path.exists():
        reads, writes = _FORMS[path.suffix]
        try:
            found = reads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("settings are an object")
            merged = _merged(found, reads(text))
            if merged == found:
                return
            text = writes(merged)
        except (ValueError, RecursionError):
            before = _unused(path)
            path.replace(before)
            print(f"warmroute: {path} cannot be read: it is written anew, and the old one is {before}", file=sys.stderr)
    write_whole(path, text.encode())


def _unused(path: Path) -> Path:
    """A name for the file's old version that no earlier version has."""
    names = chain([".before"], (f".before-{number}" for number in count(2)))
    return next(old for name in names if not (old := path.with_name(path.name + name)).exists())


def _merged(found: Any, ours: Any) -> Any:
    """`found` with the values of `ours`, which replace lists as a whole."""
    if not isinstance(found, dict) or not isinstance(ours, dict):
        return ours
    return found | {name: _merged(found.get(name), value) for name, value in ours.items()}
