"""The state of a store as this proxy sees it, and the errors of calls to the store. Imports no database client."""

from enum import Enum
from typing import Any, Literal

Connection = Any
"""An `asyncpg.Connection`; asyncpg has no types."""


class StoreState(Enum):
    """The state of the database, as this proxy sees it."""

    STARTING = "starting"
    READY = "ready"
    AWAY = "away"
    OLD_SCHEMA = "old_schema"
    NEW_SCHEMA = "new_schema"
    OLD_FILE = "old_file"


class StoreError(RuntimeError):
    """The database cannot be used at present."""


class NotDone(Exception):
    """A change in the database was refused for the reason in the text. Nothing was changed, and the database works."""

    def __init__(self, text: str, *, code: Literal["not_found", "conflict", "invalid_value"]) -> None:
        super().__init__(text)
        self.code = code


class StoreAway(StoreError):
    """The database does not answer, or not in time."""


class WrongSchema(StoreError):
    """This proxy cannot use the schema of the database, or the address leads to another database than before."""

    def __init__(self, state: StoreState, text: str) -> None:
        super().__init__(text)
        self.state = state
