"""A probe whose answer has come is answered, also where this process was held up until after the time limit."""

import asyncio
import socket
import threading
import time
from typing import Final

from warmroute_proxy.server.engines.small_get import ask
from warmroute_proxy.server.engines.upstream import Upstream

TIMEOUT_S: Final = 900.0
ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Clock(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def test_an_answer_that_waits_to_be_read_beats_the_time_limit() -> None:
    loop = Clock()
    requested, release, answered = asyncio.Event(), threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            loop.call_soon_threadsafe(requested.set)
            release.wait()
            connection.sendall(ANSWER)
            answered.set()
            connection.recv(1)

    async def answer(port: int) -> tuple[int, bytes]:
        upstream = Upstream(f"http://127.0.0.1:{port}", TIMEOUT_S, time.monotonic)
        asked = loop.create_task(ask(upstream, "/ready", timeout_s=TIMEOUT_S))
        await requested.wait()
        release.set()
        answered.wait()  # holds up the loop: its next pass finds the answer, and the time limit passed
        loop.ahead_s = 2 * TIMEOUT_S
        status = await asked
        upstream.close()
        return status

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            assert runner.run(answer(listener.getsockname()[1])) == (200, b"ok")
        server.join()
