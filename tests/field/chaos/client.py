"""One client on a bare socket: it sends a request, and says from the bytes alone how the answer ended.

whole       all of the answer: a body of its announced length with a usage object, or a stream with finish, `[DONE]`
            and the terminating chunk
error       an explicit error: an error status with an error object, or a stream whose last event is one, that has no
            `[DONE]` and no terminating chunk
left        it went away itself
killed      the connection broke, and the proxy had been killed by then
unfinished  anything else: a silent truncation, an answer that makes no sense, no answer in time
"""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from tests.machine import seconds

from .asks import Ask

End = Literal["whole", "error", "left", "killed", "unfinished"]

ANSWER_TIMEOUT_S: Final = 90.0
ERROR_BYTES: Final = 600
_READ_BYTES: Final = 65_536
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Seen:
    """What a client saw of one answer."""

    ask: Ask
    life: int
    """Which life of the proxy it came from."""

    end: End
    detail: str
    status: int
    receipt: str
    """The id in the head; empty where none came."""

    usage: dict[str, Any] | None
    raw: bytes
    """The bytes, of answers that are not as they should be; the last ones of an error."""

    retry_after_s: float = 0.0
    """When it was told to come back."""

    home: str = ""
    """The region that the head names as the session's home."""


class Life:
    """The processes of one start of the proxy, and whether they were killed."""

    def __init__(self, number: int, url: str, pids: list[int]) -> None:
        parts = urlsplit(url)
        self.number = number
        self.host, self.port = parts.hostname or "", parts.port or 0
        self.pids = pids
        self.dead = False


class Broken(Exception):
    """The connection ended, or the bytes are no HTTP."""


class Line:
    """One connection to the proxy, and whether the proxy at its other end was killed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, life: Life) -> None:
        self._reader = reader
        self._writer = writer
        self._life = life
        self._raw = bytearray()
        self._at = 0

    @classmethod
    async def open(cls, life: Life) -> "Line":
        """Raises: OSError."""
        return cls(*await asyncio.open_connection(life.host, life.port), life)

    def usable(self) -> bool:
        """Whether it may carry another request."""
        return not self._writer.is_closing() and not self._reader.at_eof() and not self._life.dead

    def close(self, *, reset: bool = False) -> None:
        """Go away, with a reset if so told."""
        raw = self._writer.get_extra_info("socket")
        if reset and raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._writer.transport.abort() if reset else self._writer.close()

    async def exchange(self, ask: Ask, key: str) -> Seen:
        """Send a request and read its answer."""
        self._raw.clear()
        self._at = 0
        answer = Answer(ask.text)
        try:
            async with asyncio.timeout(seconds(ANSWER_TIMEOUT_S)):
                if await self._asked(ask, key, answer):
                    return self._seen(ask, answer, "left", "")
        except TimeoutError:
            return self._seen(ask, answer, "unfinished", f"no end of the answer within {ANSWER_TIMEOUT_S:g} s")
        except (Broken, OSError) as error:
            problem = answer.judge_break(str(error) or type(error).__name__)
            if problem and self._life.dead:
                return self._seen(ask, answer, "killed", problem)
            return self._seen(ask, answer, "unfinished" if problem else "error", problem)
        problem = answer.judge_end()
        return self._seen(ask, answer, "unfinished" if problem else "error" if answer.error else "whole", problem)

    def _seen(self, ask: Ask, answer: "Answer", end: End, detail: str) -> Seen:
        kept = bytes(self._raw[-ERROR_BYTES:]) if end == "error" else bytes(self._raw) if end == "unfinished" else b""
        later = float(answer.headers.get("retry-after", "0"))
        code = str(answer.error.get("code")) if answer.error and end == "error" else ""
        return Seen(
            ask, self._life.number, end, detail or code, answer.status, answer.receipt, answer.usage, kept, later,
            answer.headers.get("x-warmroute-home", ""),
        )  # fmt: skip

    async def _asked(self, ask: Ask, key: str, answer: "Answer") -> bool:
        """Send and read; whether the client left on the way."""
        text = (
            f"POST {ask.path} HTTP/1.1\r\nhost: chaos\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(ask.body)}\r\n"
        )
        text += "".join(f"{name}: {value}\r\n" for name, value in ask.headers)
        head = f"{text}idempotency-key: {ask.key}\r\n\r\n".encode() if ask.key else f"{text}\r\n".encode()
        if ask.leave == "in_body":
            self._writer.write(head + ask.body[: len(ask.body) // 2])
            await self._writer.drain()
            self.close(reset=ask.resets)
            return True
        self._writer.write(head + ask.body)
        if ask.leave == "before_head":
            try:
                async with asyncio.timeout(ask.leave_after):
                    await self._more()
            except TimeoutError:
                self.close(reset=ask.resets)
                return True
        await self._read(ask, answer)
        if answer.left:
            self.close(reset=ask.resets)
        return answer.left

    async def _more(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise Broken("the connection closed")
        self._raw += data

    async def _read(self, ask: Ask, answer: "Answer") -> None:
        while b"\r\n\r\n" not in self._raw:
            await self._more()
        at = self._raw.index(b"\r\n\r\n") + 4
        answer.take_head(bytes(self._raw[:at]))
        while True:
            at = answer.take_body(self._raw, at)
            if answer.ended:
                if at != len(self._raw):
                    raise Broken(f"{len(self._raw) - at} bytes follow the end of the answer")
                return
            if ask.leave == "after_bytes" and len(self._raw) >= ask.leave_after:
                answer.left = True
                return
            if ask.reads_slowly:
                await asyncio.sleep(0.05)
            await self._more()


class Answer:
    """An answer as far as it has come."""

    def __init__(self, expected: str | None) -> None:
        """`expected`: its text; None: any."""
        self._expected = expected
        self.status = 0
        self.receipt = ""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.ended = False
        self.left = False
        self.error: dict[str, Any] | None = None
        self.usage: dict[str, Any] | None = None
        self._length: int | None = None

    @property
    def _is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def take_head(self, head: bytes) -> None:
        """Status and headers."""
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        if not first.startswith("HTTP/1.1 ") or not first[9:12].isdigit():
            raise Broken(f"no HTTP: {first!r}")
        self.status = int(first[9:12])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self.receipt = self.headers.get("x-warmroute-receipt", "")
        if self.headers.get("transfer-encoding") != "chunked":
            self._length = int(self.headers["content-length"])

    def take_body(self, raw: bytearray, at: int) -> int:
        """Read on from `at`; returns how far it came."""
        if self._length is not None:
            part = raw[at : at + self._length - len(self.body)]
            self.body += part
            self.ended = len(self.body) == self._length
            return at + len(part)
        while not self.ended:
            line = raw.find(b"\r\n", at)
            if line < 0:
                break
            size = int(raw[at:line], 16)
            if len(raw) < line + 2 + size + 2:
                break
            if raw[line + 2 + size : line + 4 + size] != b"\r\n":
                raise Broken("a chunk does not end")
            self.body += raw[line + 2 : line + 2 + size]
            at = line + 4 + size
            self.ended = size == 0
        return at

    def judge_end(self) -> str:
        """What is wrong with an answer that has ended in good order; empty: nothing."""
        if self._is_stream:
            return self._judge_stream()
        try:
            found = json.loads(self.body)
        except ValueError:
            return "the body is not JSON"
        if self.status != 200:
            self.error = found.get("error") if isinstance(found, dict) else None
            return "" if isinstance(self.error, dict) and self.error.get("message") else "an error without an object"
        self.usage = found.get("usage")
        choices = found.get("choices") or []
        if not choices or not choices[0].get("finish_reason") or not self.usage:
            return "a body without finish or usage"
        return "" if self._expected in (None, _text(choices[0])) else "the body has another text"

    def _judge_stream(self) -> str:
        events = self._events()
        if events is None or self.status != 200:
            return "the stream's events are broken"
        if any("error" in event for event in events):
            return "a stream with an error event ends as if it were whole"
        if not bytes(self.body).endswith(b"data: [DONE]\n\n"):
            return "the terminating chunk came, but no [DONE]"
        finished = any(choice.get("finish_reason") for event in events for choice in event.get("choices") or [])
        self.usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
        if not finished or not self.usage:
            return "[DONE] without finish or usage"
        return "" if self._expected in (None, _streamed(events)) else "the stream has another text"

    def judge_break(self, reason: str) -> str:
        """What is wrong with an answer that broke off; empty where it said so itself."""
        events = self._events() if self._is_stream else None
        if not events or "error" not in events[-1]:
            return f"{reason} after {len(self.body)} bytes of the body"
        if self._expected is not None and not self._expected.startswith(_streamed(events)):
            return "what came before the error event is not the beginning of the text"
        self.error = events[-1]["error"]
        return "an error event, and [DONE]" if b"[DONE]" in self.body else ""

    def _events(self) -> list[dict[str, Any]] | None:
        """The JSON events; None where the text is not one of whole events."""
        blocks = bytes(self.body).split(b"\n\n")
        if blocks.pop():
            return None
        data = [block[6:] for block in blocks if block.startswith(b"data: ") and block != b"data: [DONE]"]
        try:
            return [json.loads(item) for item in data]
        except ValueError:
            return None


def _streamed(events: list[dict[str, Any]]) -> str:
    """The text of a stream's events."""
    return "".join(_text(choice) for event in events for choice in event.get("choices") or [])


def _text(choice: dict[str, Any]) -> str:
    """Content, or the arguments of tool calls."""
    if "text" in choice:
        return str(choice["text"])
    part = choice.get("delta") or choice.get("message") or {}
    calls = [call["function"].get("arguments") or "" for call in part.get("tool_calls") or []]
    return str(part.get("content") or "") + "".join(calls)
