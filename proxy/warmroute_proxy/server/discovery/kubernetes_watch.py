"""One collection of objects, kept up to date: listed page by page, then watched from the version of the list on.

A watch ends now and then, and goes on from the version that was seen last; bookmarks keep that recent where nothing
changes. Where the server does not know the version any more (410, as an answer or as an event), the collection is
listed again. After an error it is watched from the same version: a server that has restarted says what has changed.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from warmroute_proxy.server.discovery.kubernetes_api import Answer, Api, Gone
from warmroute_proxy.server.discovery.source import SourceError

PAGE: Final = "200"
MAX_OBJECTS: Final = 20_000
LIST_SILENT_S: Final = 10.0
WATCH_S: Final = 240
WATCH_SILENT_S: Final = WATCH_S + 30.0

_decoder: Final = msgspec.json.Decoder()


class Watch:
    """A collection at `path`, of those that `selector` takes (parameters of the API)."""

    def __init__(self, api: Api, path: str, selector: dict[str, str]) -> None:
        self._api = api
        self._path = path
        self._selector = selector
        self._objects: dict[str, dict[str, Any]] = {}
        self._version = ""
        self._answer: Answer | None = None
        self._events: AsyncIterator[bytes] | None = None
        self._failed = False

    @property
    def objects(self) -> list[dict[str, Any]]:
        """What there is now, by name."""
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
        except SourceError:
            self._failed = True
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
        if not self._version:
            await self._list()
            self._failed = False
            return True
        if self._events is None:
            more = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version}
            asked = {**self._selector, **more, "timeoutSeconds": str(WATCH_S)}
            self._answer = await self._api.open(self._path, asked, WATCH_SILENT_S)
            self._events = self._answer.lines()
            was, self._failed = self._failed, False
            return was
        async for line in self._events:
            return self._apply(_decoder.decode(line))
        self.close()  # the server has ended it
        return False

    def _apply(self, event: dict[str, Any]) -> bool:
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            if found.get("code") == 410:
                raise Gone
            raise SourceError(f"the API server ends a watch: {str(found.get('message'))[:200]}")
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
