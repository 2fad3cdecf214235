"""What a store is to this proxy, and the errors of those who ask it; without its client."""

from enum import Enum
from typing import Any, Literal

Connection = Any
"""An `asyncpg.Connection`, which is not typed."""


class StoreState(Enum):
    """What the database is to this proxy."""

    STARTING = "starting"
    READY = "ready"
    AWAY = "away"
    OLD_SCHEMA = "old_schema"
    NEW_SCHEMA = "new_schema"
    OLD_FILE = "old_file"


class StoreError(RuntimeError):
    """The database cannot be used as it is."""


class NotDone(Exception):
    """What was asked of the database cannot be done, as it says. Nothing was changed, and the database is well."""

    def __init__(self, text: str, *, code: Literal["not_found", "conflict", "invalid_value"]) -> None:
        super().__init__(text)
        self.code = code


class StoreAway(StoreError):
    """The database does not answer, or not in time."""


class WrongSchema(StoreError):
    """The schema is not that of this proxy, or the database is another one."""

    def __init__(self, state: StoreState, text: str) -> None:
        super().__init__(text)
        self.state = state
