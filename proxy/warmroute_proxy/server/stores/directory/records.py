"""Keeps the records of one kind (tenants or keys of the database) as this process knows them. Does no I/O."""

import logging
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

R = TypeVar("R")

_LOG: Final = logging.getLogger(__name__)
UNREAD: Final = -1
"""The version of records before they were read from the database."""


class Records(Generic[R]):
    """The records of one kind by their ids: `texts` has the database's JSON, `values` the decoded records."""

    def __init__(self, kind: str, changed: str, decode: Callable[[str, str], R]) -> None:
        """`kind`: the name of the kind in the table `directory_version`.

        `changed`: SQL that selects the id and the JSON of each record above version $1; the JSON of a deleted record is
        NULL. `decode`: takes an id and its JSON and returns the decoded record, or raises ValueError.
        """
        self.kind = kind
        self.changed = changed
        self._decode = decode
        self.version = UNREAD
        self.texts: dict[str, str] = {}
        self.values: dict[str, R] = {}
        self.unread: set[str] = set()
        """The ids of records that cannot be decoded."""

        self.on_change: list[Callable[[], None]] = []
        """Functions to call after each `apply`."""

    def apply(self, version: int, found: Iterable[tuple[str, str | None]], *, whole: bool) -> None:
        """Add the records that were read. `whole`: these are all records, not only the changed ones."""
        self.version = version
        if whole:
            self.texts, self.values, self.unread = {}, {}, set()
        for id_, text in found:
            self.texts.pop(id_, None)
            self.values.pop(id_, None)
            self.unread.discard(id_)
            if text is not None:
                self.texts[id_] = text
                self._take(id_, text)
        for call in self.on_change:
            call()

    def _take(self, id_: str, text: str) -> None:
        try:
            self.values[id_] = self._decode(id_, text)
        except ValueError as error:
            self.unread.add(id_)
            _LOG.error("%s %s of the database cannot be used: %s", self.kind, id_, error)
