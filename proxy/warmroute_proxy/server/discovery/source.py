"""The interface of a source of engines, which can be read, and says when to read it again."""

from typing import Any, Final, NamedTuple, Protocol

MAX_ENGINES: Final = 1_024
"""The largest number of engines of one source. If there are more, the rest is left out, and a problem is reported."""


class SourceError(Exception):
    """A source cannot be read. The message is only for the log, since it may contain addresses."""


class DiscoveredEngines(NamedTuple):
    """The engines that a source names now. `engines`: the keys of an [[engine]] table for each, with absolute paths;
    `next_s`: seconds until the next read; `problems`: what could not be read of the source.
    """

    engines: list[dict[str, Any]]
    next_s: float
    problems: list[str]


class Source(Protocol):
    """One source."""

    async def read(self) -> DiscoveredEngines:
        """Read the whole source. A source that is notified of changes waits for a change. Raises: SourceError."""

    def close(self) -> None:
        """End reading the source."""
