"""One chaos run: start everything, send the requests while it breaks, mend it, and look at what is left."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.subjects.processes import ProxyProcess

from .asks import Ask, ask
from .client import Line, Seen
from .fleet import ROLES, Engine
from .proxy import LIMITS, Proxy, eventually, open_entries
from .schedule import schedule

IDLE_WITHIN_S: Final = 5.0
FD_SPARE: Final = 2 * len(ROLES)  # connections for probes that are open at one moment and not at another
FD_WITHIN_S: Final = 15.0
MAX_RETRY_AFTER_S: Final = 2.0
FAULTS_AT_ONCE: Final = 4
TRIES: Final = 3  # of a client with a key

Say = Callable[[str], None]


@dataclass(slots=True)
class Findings:
    """What a run has left to look at."""

    seed: int
    seen: list[Seen] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    served: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Engine name -> its log."""

    open_at_kill: list[set[str]] = field(default_factory=list)
    still_working: dict[str, int] = field(default_factory=dict)
    """Engine name -> requests that it still had `IDLE_WITHIN_S` after the last client had gone."""

    fd_base: int = 0
    fd_end: int = 0
    rss: list[list[tuple[int, int]]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    totals: list[dict[str, Any]] = field(default_factory=list)
    """`/v1/usage` of each tenant, before the proxy was stopped."""

    turned_away: int = 0
    """Connections that the proxy did not take, while none was alive."""

    wall_s: float = 0.0
    processes: int = 1
    """Of the proxy."""


class Run:
    """The state of a run under way."""

    def __init__(self, seed: int, requests: int, concurrency: int, folder: Path, say: Say, processes: int = 1) -> None:
        self._seed = seed
        self._requests = requests
        self._concurrency = concurrency
        self._say = say
        self._folder = folder
        self._begun = 0
        self._ended = asyncio.Condition()
        self._processes = processes
        self._found = Findings(seed, processes=processes)
        self._engines: dict[str, Engine] = {}
        self._proxy: Proxy | None = None

    async def go(self) -> Findings:
        """All of it. Nothing of it is left running."""
        began_s = time.monotonic()
        self._engines = {name: Engine(name, role, self._folder) for name, role in ROLES.items()}
        try:
            await asyncio.gather(*(engine.start() for engine in self._engines.values()))
            process = ProxyProcess(
                self._folder / "proxy",
                [engine.toml() for engine in self._engines.values()],
                limits=f'{LIMITS}\n[ledger]\nsync = "{"disk" if self._seed % 2 else "process"}"',
                extra=f"processes = {self._processes}",
                model="continue_broken = true",
                fresh=True,
            )
            self._proxy = Proxy(process)
            await self._proxy.start()
            await self._under_load(self._proxy)
            await self._afterwards(self._proxy)
        finally:
            if self._proxy is not None:
                await asyncio.to_thread(self._proxy.process.stop)
            await asyncio.gather(*(engine.stop() for engine in self._engines.values()))
        self._found.wall_s = time.monotonic() - began_s
        return self._found

    async def _under_load(self, proxy: Proxy) -> None:
        self._found.fd_base = proxy.descriptors()
        sampling = asyncio.create_task(proxy.sample(self._found.seen))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._break_things(proxy))
            for _ in range(self._concurrency):
                group.create_task(self._worker(proxy))
        sampling.cancel()

    async def _worker(self, proxy: Proxy) -> None:
        """One client after another."""
        line: Line | None = None
        while self._begun < self._requests:
            wish = ask(self._seed, self._begun)
            self._begun += 1
            for left in reversed(range(TRIES)):
                if line is not None and not line.usable():
                    line.close()
                    line = None
                line = line or await self._connected(proxy)
                seen = await line.exchange(wish, proxy.process.keys[wish.tenant])
                await self._note(seen)
                if seen.end != "whole" or not wish.keeps:
                    line.close()
                await asyncio.sleep(self.pause_s(seen))
                if not left or not self.asks_again(wish, seen):
                    break
                wish = replace(wish, leave="stays", again=False)
        if line is not None:
            line.close()

    def asks_again(self, wish: Ask, seen: Seen) -> bool:
        """Whether a client tries again after what it saw."""
        return bool(wish.key) and (seen.end != "whole" or wish.again)

    def pause_s(self, seen: Seen) -> float:
        """How long a client waits after an answer."""
        return min(seen.retry_after_s, MAX_RETRY_AFTER_S)

    async def _note(self, seen: Seen) -> None:
        self._found.seen.append(seen)
        async with self._ended:
            self._ended.notify_all()

    async def _connected(self, proxy: Proxy) -> Line:
        while True:
            life = await proxy.alive()
            try:
                return await Line.open(life)
            except OSError:
                if not life.dead:
                    raise
                self._found.turned_away += 1

    async def _break_things(self, proxy: Proxy) -> None:
        few = asyncio.Semaphore(FAULTS_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for fault in schedule(self._seed, self._requests, list(ROLES)):
                async with self._ended:
                    await self._ended.wait_for(lambda at=fault.at: len(self._found.seen) >= at)  # type: ignore[misc]
                await few.acquire()
                self._say(str(fault))
                work = self._engines[fault.engine].strike(fault) if fault.engine else proxy.kill_and_start()
                group.create_task(work).add_done_callback(lambda _: few.release())

    async def _afterwards(self, proxy: Proxy) -> None:
        found = self._found
        await asyncio.gather(*(engine.mend() for engine in self._engines.values()))
        await eventually(self._idle, IDLE_WITHIN_S)
        # What an engine says of a request whose client left is waited for, so its row may come after the engine's end.
        await eventually(lambda: not open_entries(proxy.process.state_dir), IDLE_WITHIN_S)
        await eventually(lambda: self._few_descriptors(proxy), FD_WITHIN_S)
        found.totals = await self._totals(proxy)
        found.rows = await asyncio.to_thread(proxy.stop)
        found.served = {name: engine.served() for name, engine in self._engines.items()}
        found.open_at_kill = proxy.open_at_kill
        found.rss = proxy.rss
        found.complaints = proxy.complaints()

    def _idle(self) -> bool:
        self._found.still_working = {name: engine.working() for name, engine in self._engines.items()}
        return not any(self._found.still_working.values())

    def _few_descriptors(self, proxy: Proxy) -> bool:
        found = self._found
        found.fd_end = proxy.descriptors()
        return found.fd_end <= found.fd_base + FD_SPARE * found.processes

    @staticmethod
    async def _totals(proxy: Proxy) -> list[dict[str, Any]]:
        totals: list[dict[str, Any]] = []

        def answered() -> bool:
            """Asked again after a 503, as a client would: the database may have come back a moment ago."""
            with proxy.process.client(len(totals)) as client:
                answer = client.get("/v1/usage")
            if answer.status_code != 503:
                totals.append(answer.raise_for_status().json())
            return len(totals) == 2

        await eventually(answered, IDLE_WITHIN_S)
        return totals
