"""A client of Responses over a WebSocket that says what a test wants."""

import json
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess

MODEL: Final = "kimi-k2.5"
PATH: Final = "/v1/responses"
LAST: Final = ("response.completed", "response.incomplete", "response.failed", "error")
"""The types of the last events of turns."""


class Socket:
    """One connection."""

    def __init__(self, proxy: ProxyProcess, *, tenant: int = 0, headers: dict[str, str] | None = None) -> None:
        key = {"authorization": f"Bearer {proxy.keys[tenant]}"}
        url = f"ws{proxy.url[4:]}{PATH}"
        self.connection: ClientConnection = connect(
            url, additional_headers=key | (headers or {}), max_size=None, open_timeout=seconds(20)
        )

    def __enter__(self) -> "Socket":
        self.connection.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, text: str = "", **more: Any) -> None:
        asked = {"input": [{"role": "user", "content": text}]} if text else {}
        self.connection.send(json.dumps({"type": "response.create", "model": MODEL, **asked, **more}))

    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.connection.recv(seconds(20)))
        return found

    def until(self, *kinds: str) -> dict[str, Any]:
        """The next event of one of these kinds."""
        while (found := self.event())["type"] not in kinds:
            pass
        return found

    def ask(self, text: str = "", **more: Any) -> dict[str, Any]:
        """The last event of a turn."""
        self.send(text, **more)
        return self.until(*LAST)

    def answer(self, text: str = "", **more: Any) -> dict[str, Any]:
        """The response of a turn."""
        done = self.ask(text, **more)
        assert done["type"] == "response.completed", done
        response: dict[str, Any] = done["response"]
        return response
