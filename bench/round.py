"""One round of a workload: its connections, and what the proxy uses while they send requests."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from bench.load import Client, Tally
from bench.loop import Loop
from bench.process import Cpu, cpu, memory_kb
from bench.workloads import Workload

WARM_UP: Final = 0.25  # time before the measurement, as a share of the workload's time
SETTLED_S: Final = 1.0  # time for which streams run before other connections come
LIMIT_S: Final = 60.0  # time in which running requests must end


class Round:
    """Connections to one port. After `run`, `tally` has the answers, and `window` what the proxy used."""

    def __init__(self, loop: Loop, port: int, workload: Workload, number: int, pid: int | None) -> None:
        self.tally = Tally(chunks_each=workload.plan.chunks if workload.streams else None, stamped=workload.stamped)
        self.window = Window(self.tally, pid)
        self._beside = Tally(chunks_each=workload.plan.chunks, stamped=True)
        self._loop = loop
        self._port = port
        self._workload = workload
        self._number = number
        self._clients: list[Client] = []
        self._ended = 0

    @property
    def delays_ns(self) -> list[int]:
        """How long chunks were under way. If streams run beside the connections, only their chunks count."""
        return (self._beside if self._workload.beside else self.tally).delays_ns

    def run(self) -> None:
        """Open the connections and run until they have ended."""
        if self._workload.sessions:
            self._all_of_them()
        elif self._workload.streams:
            self._streams()
        else:
            self._for_a_time()

    def _streams(self) -> None:
        workload, window, connections = self._workload, self.window, self._workload.connections
        window.begin()
        for number in range(connections):
            self._loop.after(workload.ramp_s * number / connections, self._later(number))
        lasts_s = workload.plan.chunks * workload.plan.interval_ms / 1000
        if workload.fresh:
            self._loop.after((workload.ramp_s + lasts_s) / 2, window.see_memory)
        self._end(connections)
        window.end()

    def _all_of_them(self) -> None:
        workload, connections = self._workload, self._workload.connections
        asked = [workload.requests(number, self._port, self._number) for number in range(connections)]
        clients = [self._client(requests, self.tally) for requests in asked]
        self.window.begin()
        for number, client in enumerate(clients):
            self._loop.after(workload.ramp_s * number / connections, partial(self._begin, client))
        self._end(connections)
        self.window.end()

    def _for_a_time(self) -> None:
        workload, window = self._workload, self.window
        everyone = workload.connections + workload.beside
        for number in range(workload.beside):
            self._connect(workload.stream(number, self._port), self._beside)
        if workload.beside:
            self._run(everyone, SETTLED_S)
            self._beside.delays_ns.clear()
        asked = [workload.requests(number, self._port, self._number) for number in range(workload.connections)]
        comers = [self._client(requests, self.tally) for requests in asked]
        if workload.at_once:
            window.begin()
        for client in comers:
            self._begin(client)
        if not workload.at_once:
            self._run(everyone, workload.seconds * WARM_UP)
            window.begin()
        self._run(everyone, workload.seconds)
        window.end()
        for client in self._clients:
            client.stopping = True
        self._end(everyone)
        if self._beside.bad:
            self.tally.bad += self._beside.bad
            self.tally.reasons |= self._beside.reasons

    def _later(self, number: int) -> Callable[[], None]:
        return lambda: self._connect(self._workload.requests(number, self._port, self._number), self.tally)

    def _connect(self, requests: Iterator[bytes], tally: Tally) -> None:
        self._begin(self._client(requests, tally))

    def _client(self, requests: Iterator[bytes], tally: Tally) -> Client:
        return Client(self._loop, self._port, requests, tally, self._one_ended, self._workload.pause_s)

    def _begin(self, client: Client) -> None:
        try:
            client.begin()
        except OSError as error:
            client.tally.failed(type(error).__name__)
            self._one_ended()
        else:
            self._clients.append(client)

    def _one_ended(self) -> None:
        self._ended += 1

    def _run(self, connections: int, timeout_s: float) -> bool:
        return self._loop.run(lambda: self._ended == connections, timeout_s)

    def _end(self, connections: int) -> None:
        if not self._run(connections, LIMIT_S):
            for client in self._clients:
                if client.open:
                    client.close()
                    self.tally.failed("still open")


class Window:
    """The time that is measured: what was done before it, and what proxy and load used during it."""

    def __init__(self, tally: Tally, pid: int | None) -> None:
        self._tally = tally
        self._pid = pid
        self.open_kb = self.idle_kb = 0

    def begin(self) -> None:
        """Begin the window now."""
        self.answers_before = self._tally.answers
        self._chunks_before = self._tally.chunks
        if self._pid is not None:
            self.idle_kb = self.open_kb = memory_kb(self._pid)
        self._at_s, self._load_at_s = time.monotonic(), time.process_time()
        self._at = self._cpu()

    def see_memory(self) -> None:
        """Note how much memory the proxy uses now."""
        if self._pid is not None:
            self.open_kb = memory_kb(self._pid)

    def end(self) -> None:
        """End the window now."""
        self.used = self._cpu() - self._at
        self.answers = self._tally.answers - self.answers_before
        self.chunks = self._tally.chunks - self._chunks_before
        self.wall_s, self.load_s = time.monotonic() - self._at_s, time.process_time() - self._load_at_s

    def _cpu(self) -> Cpu:
        return Cpu(0.0, 0.0) if self._pid is None else cpu(self._pid)
