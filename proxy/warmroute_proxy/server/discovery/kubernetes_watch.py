"""One collection of objects, kept up to date: listed page by page, then watched from the version of the list on.

A watch ends now and then, and goes on from the version that was seen last; bookmarks keep that recent where nothing
changes. Where the server does not know the version any more (410, as an answer or as an event), the collection is
listed again. After an error it is watched from the same version: a server that has restarted says what has changed.
Where the version may be why (400, 504), or after `MAX_FAILURES` in a row, it is listed.

Limits: between two watches, and before a list for a version that is gone, `LEAST_S` pass, and twice as long each time
while none says anything or lasts, up to `MOST_S`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from warmroute_proxy.server.discovery.kubernetes_api import Api, ApiAnswer, Gone, Stale, refusal
from warmroute_proxy.server.discovery.source import SourceError

PAGE: Final = "200"
MAX_OBJECTS: Final = 20_000
LIST_SILENT_S: Final = 10.0
WATCH_S: Final = 240
WATCH_SILENT_S: Final = WATCH_S + 30.0
LEAST_S: Final = 1.0
MOST_S: Final = 30.0
MAX_FAILURES: Final = 5

Pause = Callable[[float], Awaitable[None]]

_decoder: Final = msgspec.json.Decoder()


class Watch:
    """A collection at `path`, of those that `selector` takes (parameters of the API)."""

    def __init__(
        self,
        api: Api,
        path: str,
        selector: dict[str, str],
        pause: Pause = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._path = path
        self._selector = selector
        self._objects: dict[str, dict[str, Any]] = {}
        self._version = ""
        self._answer: ApiAnswer | None = None
        self._events: AsyncIterator[bytes] | None = None
        self._failed = False
        self._failures = 0
        self._pause = pause
        self._clock = clock
        self._opened_s = 0.0
        self._last_wait_s = 0.0
        self._wait_s = 0.0
        """Before the server is asked again."""

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [self._objects[name] for name in sorted(self._objects)]

    async def changed(self) -> None:
        """Wait until the collection is known, has changed, or can be read again. Raises: SourceError."""
        try:
            while True:
                try:
                    if await self._step():
                        return
                except Gone:
                    self.close()
                    self._version = ""
                    self._wait_longer()
        except SourceError as error:
            self._failed = True
            self._failures += 1
            if isinstance(error, Stale) or self._failures >= MAX_FAILURES:
                self._version = ""
            self.close()
            raise
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            self._failed, self._version = True, ""
            self.close()
            raise SourceError(f"the API server says what it should not: {type(error).__name__}: {error}") from None
        except BaseException:  # cancelled
            self.close()
            raise

    def close(self) -> None:
        """Watch no more, until `changed` is called again."""
        if self._answer is not None:
            self._answer.close()
        self._answer = self._events = None

    async def _step(self) -> bool:
        """One step; whether something is to be told."""
        if self._events is None and self._wait_s:
            wait_s, self._wait_s = self._wait_s, 0.0
            await self._pause(wait_s)
        if not self._version:
            await self._list()
            self._failed, self._failures = False, 0
            return True
        if self._events is None:
            more = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version}
            asked = {**self._selector, **more, "timeoutSeconds": str(WATCH_S)}
            self._answer = await self._api.open(self._path, asked, WATCH_SILENT_S)
            self._events, self._opened_s = self._answer.lines(), self._clock()
            was, self._failed = self._failed, False
            return was
        async for line in self._events:
            return self._apply(_decoder.decode(line))
        self.close()  # the server has ended it
        if self._clock() - self._opened_s >= MOST_S:
            self._last_wait_s = 0.0
        self._wait_longer()
        return False

    def _wait_longer(self) -> None:
        self._last_wait_s = self._wait_s = min(MOST_S, max(LEAST_S, 2 * self._last_wait_s))

    def _apply(self, event: dict[str, Any]) -> bool:
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            if found.get("code") == 410:
                raise Gone
            raise refusal(found.get("code"), f"the API server ends a watch: {str(found.get('message'))[:200]}")
        self._failures, self._last_wait_s = 0, 0.0
        self._version = found["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        name = found["metadata"]["name"]
        if kind == "DELETED":
            return self._objects.pop(name, None) is not None
        if name not in self._objects and len(self._objects) >= MAX_OBJECTS:
            raise SourceError(f"{self._path} has more than {MAX_OBJECTS} objects")
        self._objects[name] = found
        return True

    async def _list(self) -> None:
        found: dict[str, dict[str, Any]] = {}
        further = ""
        while True:
            asked = {**self._selector, "limit": PAGE} | ({"continue": further} if further else {})
            answer = await self._api.open(self._path, asked, LIST_SILENT_S)
            try:
                page = _decoder.decode(await answer.whole())
            finally:
                answer.close()
            found |= {each["metadata"]["name"]: each for each in page["items"]}
            if len(found) > MAX_OBJECTS:
                raise SourceError(f"{self._path} has more than {MAX_OBJECTS} objects")
            further = page["metadata"].get("continue", "")
            if not further:
                break
        self._objects, self._version = found, page["metadata"]["resourceVersion"]
