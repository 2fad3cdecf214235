"""A gateway that speaks external processing as a test wants it to: what no Envoy would send, and when."""

import queue
from collections.abc import Iterator
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages

from tests.machine import seconds
from tests.subjects.stopped import Stopped

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_END = None


def head(
    path: str, key: str, *, ends: bool = False, method: str = "POST", **headers: str
) -> messages.ProcessingRequest:
    """The headers of a request."""
    message = messages.ProcessingRequest()
    given = {":method": method, ":path": path, ":authority": "x", "authorization": f"Bearer {key}", **headers}
    for name, value in given.items():
        header = message.request_headers.headers.headers.add()
        header.key, header.raw_value = name.replace("_", "-"), value.encode()
    message.request_headers.end_of_stream = ends
    message.protocol_config.request_body_mode = message.protocol_config.response_body_mode = 4
    return message


def body(data: bytes, *, ends: bool = True) -> messages.ProcessingRequest:
    """Some of its body."""
    message = messages.ProcessingRequest()
    message.request_body.body, message.request_body.end_of_stream = data, ends
    return message


def answer_head(status: int, content_type: str = "application/json", *, ends: bool = False) -> Any:
    """The headers of an engine's answer."""
    message = messages.ProcessingRequest()
    for name, value in ((":status", str(status)), ("content-type", content_type)):
        header = message.response_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    message.response_headers.end_of_stream = ends
    return message


def answer_body(data: bytes, *, ends: bool = True) -> Any:
    """Some of its body."""
    message = messages.ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = data, ends
    return message


class Conversation(Stopped):
    """One stream."""

    def __init__(self, channel: grpc.Channel, timeout_s: float = 20.0) -> None:
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = channel.stream_stream(PROCESS)(self._messages(), timeout=seconds(timeout_s))

    def _messages(self) -> Iterator[bytes]:
        while (message := self._out.get()) is not _END:
            yield message

    def send(self, *sent: Any) -> "Conversation":
        """Messages, or bytes that are none."""
        for message in sent:
            self._out.put(message if isinstance(message, bytes) else message.SerializeToString())
        return self

    def read(self) -> messages.ProcessingResponse:
        """The next answer."""
        return messages.ProcessingResponse.FromString(next(self.call))

    def until_body_ends(self) -> tuple[messages.ProcessingResponse, bytes]:
        """The answer to the headers of the request, and the body for the engine."""
        first, data = self.read(), b""
        assert first.WhichOneof("response") == "request_headers", first
        while True:
            streamed = self.read().request_body.response.body_mutation.streamed_response
            data += streamed.body
            if streamed.end_of_stream:
                return first, data

    def half_close(self) -> None:
        """Nothing more is sent."""
        self._out.put(_END)

    def status(self) -> grpc.StatusCode:
        """How the stream has ended; what comes before is dropped."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        found: grpc.StatusCode = self.call.code()
        return found

    def cancel(self) -> None:
        """Reset it."""
        self.call.cancel()
        self.half_close()

    def stop(self) -> None:
        self.cancel()
