"""A chat stream read for translation: its bytes are cut into events, and each event is handed to the dialect's own."""

from typing import Final

import msgspec

from warmroute_proxy.dialects.chat_answers import Chunk, Output, Usage, decode_chunk, error_status

MAX_EVENT_BYTES: Final = 16_777_216


class ChatStream:
    """One stream. `feed` takes any bytes of it, and gives what is whole by then in the dialect.

    A dialect overrides `began`, `added`, `completed` and `failed`, and `waits` if it has a sign of life.
    """

    def __init__(self) -> None:
        self._carry = b""
        self._begun = False
        self.ended = False
        self.usage = Usage()
        self.finish_reason: str | None = None
        self.matched_stop: object = None

    def feed(self, data: bytes) -> bytes:
        """Translate some bytes. Raises: ValueError, where they are no chat stream."""
        *whole, self._carry = (self._carry + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._carry) > MAX_EVENT_BYTES:
            raise ValueError(f"an event exceeds {MAX_EVENT_BYTES} bytes")
        out: list[bytes] = []
        for each in whole:
            if each.startswith(b"data:"):
                self._event(each[5:].strip(), out)
            elif each.startswith(b":"):
                self._begin(out)
                self.waits(out)
        return b"".join(out)

    def error(self, status: int, message: str, code: object) -> bytes:
        """End the stream with an error, given in chat's terms."""
        out: list[bytes] = []
        self.ended = True
        self.failed(status, message, code, out)
        return b"".join(out)

    def began(self, out: list[bytes]) -> None:
        """The answer begins: called once, before all that follows but an error."""

    def waits(self, out: list[bytes]) -> None:
        """The prompt is still being computed."""

    def added(self, output: Output, out: list[bytes]) -> None:
        """The model has said more."""
        raise NotImplementedError

    def completed(self, out: list[bytes]) -> None:
        """The answer is complete: `usage`, `finish_reason` and `matched_stop` are known."""
        raise NotImplementedError

    def failed(self, status: int, message: str, code: object, out: list[bytes]) -> None:
        """An error has ended the answer."""
        raise NotImplementedError

    def _begin(self, out: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            self.began(out)

    def _event(self, payload: bytes, out: list[bytes]) -> None:
        if self.ended:
            return
        if payload == b"[DONE]":
            self.ended = True
            self._begin(out)
            self.completed(out)
            return
        try:
            chunk = decode_chunk(payload)
        except (msgspec.DecodeError, RecursionError):
            raise ValueError("the engine's event is no chunk of a chat completion") from None
        if isinstance(chunk.error, dict):
            text, code = str(chunk.error.get("message")), chunk.error.get("code")
            out.append(self.error(error_status(chunk.error), text, code))
            return
        self._begin(out)
        self._take(chunk, out)

    def _take(self, chunk: Chunk, out: list[bytes]) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            if choice.delta is not None:
                self.added(choice.delta, out)
            if choice.finish_reason is not None:
                self.finish_reason, self.matched_stop = choice.finish_reason, choice.matched_stop
