"""What a source of engines is: something that can be read, and says when to read it again."""

from typing import Any, Final, NamedTuple, Protocol

MAX_ENGINES: Final = 1_024
"""Of one source. More are left out, which is a problem of that source."""


class SourceError(Exception):
    """A source cannot be read. The message is for the log: it may hold addresses."""


class DiscoveredEngines(NamedTuple):
    """What a source names now. `engines`: the keys of an [[engine]] each, with absolute paths; `next_s`: seconds until
    it is to be read again; `problems`: what of it could not be read.
    """

    engines: list[dict[str, Any]]
    next_s: float
    problems: list[str]


class Source(Protocol):
    """One source."""

    async def read(self) -> DiscoveredEngines:
        """Read all of it; a source that is told of changes waits for one. Raises: SourceError."""

    def close(self) -> None:
        """It is read no more."""
