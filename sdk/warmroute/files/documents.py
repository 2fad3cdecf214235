"""Parses JSON and TOML that others wrote. JSON values are counted before they are parsed, to bound the memory.

A parsed `[],` takes 25 times the bytes of its text. A fault of a JSON document raises `DocumentError` without the name
of the file, which the caller knows.
"""

import json
import re
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any, Final

from warmroute.files.given import UnreadableFile, given_bytes

MAX_VALUES: Final = 2_000_000
"""The maximum number of values in one document. This number of values takes up to 0.5 GB of memory, if all of them are
objects."""

_BEGINS_VALUE: Final = (b"[", b"{", b",")
_OUTSIDE: Final = re.compile(rb'[\[{,]|"[^"\\]*+(?:\\.?[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
"""A character that begins a value, or a whole string. An unclosed string ends with the file, which keeps the scan
linear."""

_QUOTE: Final = ord('"')


class DocumentError(ValueError):
    """A fault of a document, with its place in the document."""


def json_of(data: bytes) -> Any:
    """The value of a JSON document. Raises: DocumentError."""
    if sum(map(data.count, _BEGINS_VALUE)) > MAX_VALUES:
        _check_values(data)
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DocumentError(f"no UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise DocumentError("is nested too deeply") from None
    except ValueError as error:
        raise DocumentError(f"no JSON: {error}") from None


def toml_in(path: Path, max_bytes: int) -> dict[str, Any]:
    """The tables of a TOML file. Raises: UnreadableFile."""
    content = given_bytes(path, max_bytes)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{path} is not TOML: no UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise UnreadableFile(f"{path} is not TOML that can be read: it is nested too deeply") from None
    except ValueError as error:  # also raised for a number with too many digits
        raise UnreadableFile(f"{path} is not TOML: {error}") from None


def _check_values(data: bytes) -> None:
    """Count the values outside of strings. Raises: DocumentError for more than `MAX_VALUES`."""
    begins = (found for found in _OUTSIDE.finditer(data) if data[found.start()] != _QUOTE)
    if next(islice(begins, MAX_VALUES, None), None) is not None:
        raise DocumentError(f"has more than {MAX_VALUES:,} values; split it")
