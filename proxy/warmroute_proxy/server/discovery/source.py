"""The interface of a source of engines: it can be read, and says when to read it again."""

from typing import Any, Final, NamedTuple, Protocol

MAX_ENGINES: Final = 1_024
"""The largest number of engines of one source. Others are left out, which is reported as a problem of that source."""


class SourceError(Exception):
    """A source cannot be read. The message is only for the log, since it may hold addresses."""


class DiscoveredEngines(NamedTuple):
    """The engines that a source names now. `engines`: of each the keys of an [[engine]] table, with absolute paths;
    `next_s`: seconds until the next read; `problems`: what could not be read of the source.
    """

    engines: list[dict[str, Any]]
    next_s: float
    problems: list[str]


class Source(Protocol):
    """One source."""

    async def read(self) -> DiscoveredEngines:
        """Read the whole source. A source that is notified of changes waits for one. Raises: SourceError."""

    def close(self) -> None:
        """End reading the source."""
