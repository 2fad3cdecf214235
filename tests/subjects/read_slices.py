"""Connections that wait for their turn to be read, without an event loop."""

from collections import deque

from warmroute_proxy.server.http.read_slices import ReadSlices, SlicedConnection


class Lines(ReadSlices):
    """The lines; a test says when they go on."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[SlicedConnection] = deque()

    def wait(self, connection: SlicedConnection, tenant: str) -> None:
        connection.pause_reading()
        self.waiting.append(connection)

    def go_on(self) -> None:
        """Let all go on, until none waits."""
        while self.waiting:
            self.waiting.popleft().resume_reading()
