"""`client.cache`: what the client has observed of the cache, and fetching of receipts."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from warmroute._books import Books
from warmroute._explain import explain
from warmroute._report import CacheReport

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


class _View:
    """What both kinds of clients share. It makes no calls."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def report(self) -> CacheReport:
        """Sums over all turns of the client and its `with_options()` copies."""
        return self._books.report()

    def explain(self, session: str | None = None) -> str:
        """Why the last turn, of `session` or of all, was not warmer, in sentences."""
        return explain(self._books.last_turn(session), session)

    def pending(self) -> list[str]:
        """Ids of receipts that were announced but not read, oldest first; the newest thousand."""
        return self._books.pending()

    def _settled(self, receipt_id: str, answer: object) -> Mapping[str, Any] | None:
        usage = answer.get("usage") if isinstance(answer, Mapping) else None
        if not isinstance(usage, Mapping):
            return None
        self._books.settle_fetched(receipt_id, usage)
        return usage


class Cache(_View):
    """`client.cache` of an `OpenAI` client."""

    def __init__(self, books: Books, get: Callable[[str], object]) -> None:
        super().__init__(books)
        self._get = get

    def fetch(self, receipt_id: str) -> Mapping[str, Any] | None:
        """The `usage` of a settled receipt, by one call to the server; None while the turn is still open.

        A receipt that was pending is checked and added to the report. Errors are openai's own (404: no such receipt).
        """
        return self._settled(receipt_id, self._get(_path(receipt_id)))


class AsyncCache(_View):
    """`client.cache` of an `AsyncOpenAI` client."""

    def __init__(self, books: Books, get: Callable[[str], Awaitable[object]]) -> None:
        super().__init__(books)
        self._get = get

    async def fetch(self, receipt_id: str) -> Mapping[str, Any] | None:
        """The `usage` of a settled receipt, by one call to the server; None while the turn is still open.

        A receipt that was pending is checked and added to the report. Errors are openai's own (404: no such receipt).
        """
        return self._settled(receipt_id, await self._get(_path(receipt_id)))


def _path(receipt_id: str) -> str:
    if not _ID.fullmatch(receipt_id):
        raise ValueError(f"{receipt_id!r} is not a receipt id")
    return f"/usage/receipts/{receipt_id}"
