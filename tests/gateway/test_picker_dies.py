"""A picker that is killed while Envoy has requests under way: each ends at once, and none is charged or lost."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.test_protocol import Change, answers, off, scene
from tests.machine import seconds
from tests.subjects.gateway import fails_open
from tests.subjects.ports import free_port
from tests.subjects.processes import chat, until
from tests.subjects.scripted import ROLE, Handler, delta

CLOSES = ["connection: close"]


def rest(client: socket.socket) -> bytes:
    """What comes until the connection ends."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65_536):
            data += piece
    return data


def read_to(client: socket.socket, word: bytes) -> None:
    """Read up to a word of the answer."""
    data = b""
    while word not in data:
        piece = client.recv(65_536)
        assert piece, data
        data += piece


def streams(gate: threading.Event, cut: list[str]) -> Callable[[Handler], None]:
    """An engine that streams the first of its answer, and the rest once the gate is open; a whole answer takes forever.
    Requests that are `cut` are noted.
    """

    def script(handler: Handler) -> None:
        if b'"stream":true' not in handler.engine.bodies[-1]:
            handler.connection.settimeout(seconds(30))
            if not handler.connection.recv(1):
                cut.append("whole")
            handler.cut()
            return
        handler.stream(ROLE, delta("first"), end=False)
        gate.wait(seconds(30))
        piece = f"data: {json.dumps(delta('x' * 1000))}\n\n".encode()
        try:
            for _ in range(2000):
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            cut.append("stream")

    return script


@pytest.mark.parametrize("change", [None, fails_open], ids=["closed", "open"])
def test_each_request_under_way_ends_at_once_and_is_charged_nothing(tmp_path: Path, change: Change | None) -> None:
    gate, cut = threading.Event(), list[str]()
    whole, stream = json.dumps(chat("a")).encode(), json.dumps(chat("b", stream=True), separators=(",", ":")).encode()
    port, of_engine = free_port(), "max_running = 2"
    with scene(tmp_path, change, engines=1, of_engine=of_engine, port=port) as it, contextlib.ExitStack() as stack:
        engine = it.engines[0]
        engine.script = streams(gate, cut)
        streaming = stack.enter_context(it.sent(stream, lines=CLOSES))
        read_to(streaming, b"first")
        running = stack.enter_context(it.sent(whole, lines=CLOSES))
        until(lambda: len(engine.bodies) == 2, "the engine computes the other one")
        waiting = stack.enter_context(it.sent(whole, lines=CLOSES))
        with it.picker.admin() as admin:
            until(lambda: admin.get("/admin/admission").json()["queue"]["requests"] == 1, "one waits for a place")
        messages = it.envoy.stat("ext_proc.stream_msgs_sent")
        uploading = stack.enter_context(it.sent(whole, 100, lines=CLOSES))
        until(lambda: it.envoy.stat("ext_proc.stream_msgs_sent") >= messages + 2, "the picker has part of its body")
        it.picker.kill()
        for client in (uploading, waiting, running):
            assert rest(client).startswith(b"HTTP/1.1 500 ")
        assert b"0\r\n\r\n" not in rest(streaming)  # so the client knows that it is not whole
        gate.set()
        until(lambda: sorted(cut) == ["stream", "whole"], "the engine is told to stop")
        assert len(engine.bodies) == 2  # what waited, or was not here yet, has not gone past the picker
        engine.script = answers
        it.picker.start(port)
        rows = it.picker.rows(2)
        assert [(row["outcome"], row["price_nanousd"]) for row in rows] == [("interrupted", 0)] * 2
        until(lambda: "x-warmroute-receipt" in it.post(chat("c")).headers, "Envoy asks the picker again")


def test_a_stream_that_is_not_read_goes_on_without_the_picker(tmp_path: Path) -> None:
    gate, cut = threading.Event(), list[str]()
    stream = json.dumps(chat("b", stream=True), separators=(",", ":")).encode()
    with scene(tmp_path, off("SEND"), engines=1) as it:
        it.engines[0].script = streams(gate, cut)
        with it.sent(stream, lines=CLOSES) as client:
            read_to(client, b"first")
            it.picker.kill()
            gate.set()
            assert rest(client).endswith(b"0\r\n\r\n")
    assert not cut
