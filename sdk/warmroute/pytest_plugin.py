"""The pytest fixture `warmroute_cache` checks that an agent keeps its prompts cached.

    def test_agent(warmroute_cache):
        run_agent()                                 # by warmroute's clients, wrapped clients or warmroute's transport
        warmroute_cache.assert_hit_ratio(0.85)
        warmroute_cache.assert_nothing_broken()

The fixture sees the clients that are made during the test, and the clients passed to `add`. The hit ratio follows from
the `usage` of the servers' answers. If no server reports cached tokens, as with a mock, the ratio is the share of the
prompts that repeats earlier prompts of their session.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from warmroute._books import Books
    from warmroute._guard import GuardEvent


class WarmrouteCache:
    """The turns and events of all clients of a test."""

    def __init__(self, books: list["Books"]) -> None:
        self._books = books

    def add(self, client: Any) -> None:
        """Watch a client that was made before the test."""
        self._books.append(client.cache.books)

    @property
    def hit_ratio(self) -> float | None:
        """Cached share of the prompt tokens, 0 to 1; None before the first turn."""
        reports = [books.report() for books in self._books]
        cached = sum(report.cached_tokens or 0 for report in reports)
        of_tokens = sum(report.cached_of_tokens for report in reports)
        if of_tokens:
            return cached / of_tokens
        prompts = sum(books.guard.prompt_bytes for books in self._books)
        return sum(books.guard.repeated_bytes for books in self._books) / prompts if prompts else None

    @property
    def events(self) -> list["GuardEvent"]:
        """Broken prefixes, repairs, and cache misses of the server."""
        return [event for books in self._books for event in books.guard_events()]

    def assert_hit_ratio(self, at_least: float) -> None:
        """Fail if less than this share was cached. The message names the causes."""
        ratio = self.hit_ratio
        if ratio is None:
            pytest.fail("no turn of a warmroute client was seen: make the client in the test, or add() it")
        if ratio < at_least:
            pytest.fail(f"{ratio:.1%} cached is under {at_least:.1%}\n" + "\n".join(map(str, self.events)))

    def assert_nothing_broken(self) -> None:
        """Fail if a call broke the prefix of its session and no rule repaired it."""
        broken = [event for event in self.events if event.is_clients_own and event.repaired_by is None]
        if broken:
            pytest.fail("\n".join(map(str, broken)))


@pytest.fixture
def warmroute_cache() -> Iterator[WarmrouteCache]:
    """The cache of all clients that the test makes."""
    from warmroute._books import collectors

    books: list[Books] = []
    collectors.append(books)
    yield WarmrouteCache(books)
    collectors.remove(books)
