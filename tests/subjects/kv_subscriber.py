"""Listens to the KV events of an engine, as a router would: subscription, sequence numbers, replay."""

import time
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.machine import seconds
from tests.subjects.stopped import Stopped

WAIT_S = 20.0
NOTHING_FROM_HERE = 2**62
"""A sequence number that no publisher reaches."""


@dataclass(frozen=True)
class Message:
    """One batch as it came. `payload` is [timestamp, events, data-parallel rank]."""

    topic: bytes
    number: int
    raw: bytes

    @property
    def payload(self) -> list[Any]:
        return msgspec.msgpack.decode(self.raw)  # type: ignore[no-any-return]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.payload[1]  # type: ignore[no-any-return]


class KvSubscriber(Stopped):
    """A subscription to one rank, from what `/server_info` says of it. `host` replaces a wildcard."""

    def __init__(self, info: dict[str, Any], host: str = "127.0.0.1", rank: int = 0) -> None:
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt_string(zmq.SUBSCRIBE, info["topic"])
        monitor = self._sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._sub.connect(f"tcp://{host}:{info['endpoint_port_base'] + rank}")
        assert monitor.poll(int(seconds(WAIT_S) * 1000)), "no connection to the publisher"
        recv_monitor_message(monitor)
        self._sub.disable_monitor()
        monitor.close(linger=0)
        self._replay: zmq.Socket[bytes] | None = None
        if "replay_endpoint_port_base" in info:
            self._replay = self._context.socket(zmq.DEALER)
            self._replay.connect(f"tcp://{host}:{info['replay_endpoint_port_base'] + rank}")
            # The handshake says that the publisher is there, not that it has read the subscription: an answer over the
            # other socket, which the same thread serves later, does.
            assert self.replay(NOTHING_FROM_HERE) == []

    def stop(self) -> None:
        self._context.destroy(linger=0)

    def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None when none comes in time."""
        if not self._sub.poll(int((seconds(WAIT_S) if timeout_s is None else timeout_s) * 1000)):
            return None
        topic, number, raw = self._sub.recv_multipart()
        return Message(topic, int.from_bytes(number, "big"), raw)

    def until(self, *wanted: dict[str, Any]) -> list[Message]:
        """Messages up to the one after which there was an event like each of `wanted` (which name some of its
        members)."""
        messages: list[Message] = []
        missing = list(wanted)
        deadline_s = time.monotonic() + seconds(WAIT_S)
        while missing:
            message = self.next(max(0.0, deadline_s - time.monotonic()))
            assert message is not None, f"no event like {missing[0]} came; there were {events(messages)}"
            messages.append(message)
            for event in message.events:
                missing = [like for like in missing if not like.items() <= event.items()]
        return messages

    def replay(self, first: int) -> list[Message]:
        """What the engine still has from number `first` on."""
        self.ask_replay(b"", first.to_bytes(8, "big"))
        messages: list[Message] = []
        while True:
            frames = self.replay_answer(seconds(WAIT_S))
            assert frames is not None, "the replay did not end"
            empty, topic, number, raw = frames
            assert empty == b""
            if int.from_bytes(number, "big", signed=True) == -1:
                assert (topic, raw) == (b"", b"")
                return messages
            messages.append(Message(topic, int.from_bytes(number, "big"), raw))

    def ask_replay(self, *frames: bytes) -> None:
        """Send a replay request, well formed or not."""
        assert self._replay is not None
        self._replay.send_multipart(frames)

    def replay_answer(self, timeout_s: float) -> list[bytes] | None:
        """The next message of the replay socket, or None when none comes in time."""
        assert self._replay is not None
        return self._replay.recv_multipart() if self._replay.poll(int(timeout_s * 1000)) else None


def events(messages: list[Message]) -> list[dict[str, Any]]:
    """All events of some messages."""
    return [event for message in messages for event in message.events]
