"""Reads the keys of one TOML table, each by its type, and collects problems instead of stopping.

The caller reads every key that it knows; `close` reports all other keys as unknown. A key with a wrong value reads as
its default, so that everything else can still be checked. Problems show only values that cannot be secret.
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from warmroute_proxy.server.base.config_bounds import Bounds, annotated, bounds, fields_of

_BEHIND_THE_PATH: Final = re.compile("[?#]")
SHA256_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_HERE: Final = Path()
_Record = TypeVar("_Record")


class Table:
    """One TOML table. `path`: the name of the table in problems."""

    def __init__(self, values: object, path: str, problems: list[str]) -> None:
        self._values: dict[str, Any] = values if isinstance(values, dict) else {}
        self._path = path
        self._problems = problems
        self._known: list[str] = []
        self._bounds: Mapping[str, Bounds] = {}
        if not isinstance(values, dict):
            problems.append(f"{path}: must be a table, written [{path}]")

    def of(self, kind: type) -> "Table":
        """This table, with the bounds of its numbers taken from the fields of a record (a dataclass or named tuple)."""
        self._bounds = bounds(kind)
        return self

    def read(self, record: type[_Record], /, folder: Path = _HERE, **given: Any) -> _Record:
        """A record, each field read from the key with the field's name. `given`: values of fields that the caller has
        read. Relative paths start at `folder`.
        """
        self.of(record)
        rest = (field for field in fields_of(record) if field[0] not in given)
        return record(**given, **{name: self._field(name, hint, default, folder) for name, hint, default in rest})

    def problem(self, key: str, text: str) -> None:
        self._problems.append(f"{self._path}.{key}: {text}")

    def has(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Without a default, the key is required, and must not be empty."""
        value = self._take(key, required=default is None)
        if value is None:
            return default or ""
        if not isinstance(value, str) or (default is None and not value.strip()):
            text = f'; write it in quotes: {key} = "{value}"' if type(value) in {int, float} else ""
            self.problem(key, f"must be a string{' that is not empty' * (default is None)}, not {shown(value)}{text}")
            return default or ""
        return value

    def name(self, key: str, default: str | None = None) -> str:
        """A string that can stand in headers, ids and logs."""
        value = self.text(key, default)
        if value and value != default and not NAME.fullmatch(value):
            self.problem(key, f"{shown(value)} is not a name: up to 128 letters, digits and ._:/@+-")
        return value

    def choice(self, key: str, options: Sequence[str], default: str) -> str:
        """One of `options`. The problem of a misspelt word names the nearest option."""
        value = self._take(key)
        if value is None:
            return default
        if value not in options:
            self.problem(key, f"{shown(value)} is not one of {', '.join(options)}{nearest(value, options)}")
            return default
        return str(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._take(key)
        if not isinstance(value, bool | None):
            self.problem(key, f"must be true or false, not {shown(value)}")
        return default if value is None else value is True

    def integer(self, key: str) -> int | None:
        """An integer within its field's bounds, or the field's default."""
        value, wanted = self._take(key), self._bounds[key]
        default = None if wanted.default is None else int(wanted.default)
        if value is None:
            return default
        if type(value) is not int:
            self.problem(key, f"must be an integer, not {shown(value)}")
            return default
        return value if self._in_range(key, value, wanted) else default

    def integer_or(self, key: str, word: str) -> int | None:
        """An integer within its field's bounds, or None if `word` is given instead."""
        value = self._values.get(key)
        if value is None or type(value) is int:
            return self.integer(key)
        self._take(key)
        if value == word:
            return None
        self.problem(key, f'must be an integer or "{word}", not {shown(value)}')
        return int(self._bounds[key].default or 0)

    def number(self, key: str, *, default: float | None = None) -> float:
        """An integer or decimal within its field's bounds, or the field's default."""
        value, wanted = self._take(key), self._bounds[key]
        instead = default if default is not None else float(wanted.default or 0.0)
        if value is None:
            return instead
        if type(value) not in (int, float):
            self.problem(key, f"must be a number, not {shown(value)}")
            return instead
        return float(value) if self._in_range(key, value, wanted) else instead

    def url(self, key: str, *, required: bool = True) -> str:
        """An http or https address without its trailing slash. It may be empty unless required."""
        value = self.text(key, None if required else "").rstrip("/")
        if value and (wrong := _url_problem(value)):
            self.problem(key, f"{_shown_url(value)} {wrong}")
            return ""
        return value

    def urls(self, key: str) -> tuple[str, ...]:
        """A list of http or https addresses without their trailing slashes; empty without the key."""
        found = tuple(url.rstrip("/") for url in self.names(key, ()))
        wrong = [(at, problem) for at, url in enumerate(found) if (problem := _url_problem(url))]
        for at, problem in wrong:
            self.problem(f"{key}[{at}]", f"{_shown_url(found[at])} {problem}")
        return () if wrong else found

    def file(self, key: str, folder: Path, default: str | None = "") -> Path | None:
        """The path of a file, relative to a folder; None if it is empty. The key is required if `default` is None."""
        name = self.text(key, default)
        if "://" in name:
            self.problem(key, "is an address: write the address into a file, and name the file here")
        return folder / name if name else None

    def names(self, key: str, default: Collection[str]) -> tuple[str, ...]:
        """A list of strings without repeats."""
        value = self._take(key)
        if value is None:
            return tuple(default)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.problem(key, "must be a list of strings")
            return tuple(default)
        if len(set(value)) != len(value):
            self.problem(key, "names something twice")
        if default and not value:
            self.problem(key, 'is empty; leave it out or write ["*"] for all')
        return tuple(value)

    def names_among(self, key: str, known: Sequence[str], default: frozenset[str]) -> frozenset[str]:
        """A list of words from `known`; may be empty. The problem of a misspelt word names the nearest known word."""
        is_given = self.has(key)
        found = self.names(key, ())
        if not is_given:
            return default
        for name in found:
            if name not in known:
                self.problem(key, f"{shown(name)} is not one of {', '.join(known)}{nearest(name, known)}")
        return frozenset(found)

    def texts(self, key: str) -> dict[str, str]:
        """A table of strings by name, `{ name = "text" }`; empty without the key."""
        value = self._take(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(text, str) and text for text in value.values()):
            self.problem(key, 'must be a table of strings, such as { name = "text" }')
            return {}
        return dict(value)

    def table(self, key: str) -> dict[str, Any]:
        """A table within this table; empty without the key. The caller checks the keys of the inner table."""
        value = self._take(key)
        if not isinstance(value, dict | None):
            self.problem(key, f"must be a table, not {shown(value)}")
            return {}
        return dict(value or {})

    def instant(self, key: str) -> datetime | None:
        """A time in whole seconds with its UTC offset, as TOML writes it; None without the key."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, datetime) or value.tzinfo is None or value.microsecond:
            form = "a time in whole seconds with an offset, such as 2026-12-01T00:00:00Z"
            self.problem(key, f"must be {form}, not {shown(value)}")
            return None
        return value

    def tables(self, key: str) -> "list[Table]":
        """A list of tables within this table; empty without the key."""
        value = self._take(key)
        if not isinstance(value, list | None):
            self.problem(key, f"must be a list of tables, written [[{self._path.partition('[')[0]}.{key}]]")
            return []
        return [Table(entry, f"{self._path}.{key}[{at}]", self._problems) for at, entry in enumerate(value or ())]

    def digest(self, key: str) -> str | None:
        """A SHA-256 in lower-case hex. The value is never shown: it may be a key that was put here by mistake."""
        value = self._take(key)
        if value is None:
            return None
        return self._digest(key, value)

    def digests(self, key: str, *, required: bool = True) -> tuple[str, ...]:
        """A list of at least one SHA-256 in hex; an empty tuple if the key is missing and not required."""
        value = self._take(key, required=required)
        if value is None:
            return ()
        if not isinstance(value, list) or not value:
            self.problem(key, "must be a list of SHA-256 digests of API keys, at least one")
            return ()
        checked = [self._digest(f"{key}[{at}]", item) for at, item in enumerate(value)]
        return tuple(digest for digest in checked if digest)

    def close(self) -> None:
        for key in self._values:
            if key not in self._known:
                self.problem(key, f"unknown key{nearest(key, self._known)}")

    def _field(self, key: str, hint: Any, default: Any, folder: Path) -> Any:
        """The value of a field's key, read by the type and form in the field's annotation."""
        member, _, extra = annotated(hint)
        is_optional, form, origin = NoneType in get_args(hint), extra.get("form"), get_origin(member)
        if form in {"digest", "urls"}:
            return getattr(self, form)(key)
        if form == "url":
            return self.url(key, required=default is None)
        if "among" in extra:
            return self.names_among(key, extra["among"], default)
        if member is str:
            text = (self.name if form == "name" else self.text)(key, "" if is_optional else default)
            return None if is_optional and not text else text
        if key in self._bounds:
            return self.integer(key) if member is int else self.number(key)
        if member is bool:
            return self.flag(key, default=default)
        if member is Path:
            return self.file(key, folder) if is_optional else self.file(key, folder, default and str(default)) or folder
        if origin is Literal:
            return self.choice(key, get_args(member), default)
        if origin in {tuple, frozenset}:
            return origin(self.names(key, default))
        return self.texts(key) if get_args(member)[1] is str else self.table(key)

    def _take(self, key: str, *, required: bool = False) -> Any:
        self._known.append(key)
        value = self._values.get(key)
        if value is None and required:
            self.problem(key, "is missing")
        return value

    def _in_range(self, key: str, value: float, wanted: Bounds) -> bool:
        if wanted.low <= value <= wanted.high:
            return True
        self.problem(key, f"{shown(value)} is not between {wanted.low} and {wanted.high}")
        return False

    def _digest(self, key: str, value: object) -> str | None:
        if isinstance(value, str) and SHA256_HEX.fullmatch(value):
            return value.lower()
        self.problem(key, "is not a SHA-256 in hex (64 digits)")
        return None


def nearest(value: object, options: Collection[str]) -> str:
    """` (did you mean "x"?)` for the option most similar to a value, or nothing."""
    found = difflib.get_close_matches(str(value), options, n=1)
    return f' (did you mean "{found[0]}"?)' if found else ""


def shown(value: object) -> str:
    """A value as problems show it: short, on one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _shown_url(value: str) -> str:
    """An address as problems show it: without user, password, query and fragment."""
    head, *rest = _BEHIND_THE_PATH.split(value, maxsplit=1)
    return shown("..." if "@" in "".join(rest) else head.rpartition("@")[2])  # an unescaped password may have a `?`


def _url_problem(value: str) -> str | None:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        return "is not a URL" if "@" in value else f"is not a URL: {error}"
    if parts.scheme not in ("http", "https"):
        return "must start with http:// or https://"
    if not parts.hostname or port == 0:
        return "names no host and port that can be reached"
    if not value.isascii() or any(c.isspace() or not c.isprintable() for c in value):
        return "holds spaces or characters that a URL cannot hold"
    if any(not 0 < len(label) < 64 for label in parts.hostname.removesuffix(".").split(".")):  # the look-up would raise
        return "names a host with an empty or too long part"
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        return "must be an address only: no user, query or fragment"
    return None
