"""A run with several proxies on one PostgreSQL and one Redis, while both stores break and proxies are killed.

A client whose proxy was killed asks again at another one, as behind a load balancer. Tenant `first` has a budget that
is used up in the run, `second` a limit by the minute.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.subjects.processes import ProxyProcess
from tests.subjects.stores import Postgres, Redis, Server

from warmroute_proxy.core.accounting.entry import COLUMNS, Entry
from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.stores.migrate import migrate

from .asks import Ask
from .client import Line, Seen
from .fleet import Engine
from .proxy import LIMITS, Proxy, eventually, open_entries
from .run import IDLE_WITHIN_S, Findings, Run, Say
from .store_faults import StoreFault, away_schedule, store_schedule, strike

ENGINES: Final = ("a0", "a1")
SPEED: Final = 20.0
LONGEST_PAUSE_S: Final = 0.25
SENT_WITHIN_S: Final = 60.0
NANOUSD_A_REQUEST: Final = 80_000
"""Of the first tenant's budget: less than what its requests cost, so that it is used up about half-way."""

_OF_STORES: Final = " warmroute_proxy.server.stores.", " warmroute_proxy.server.redis."


@dataclass(slots=True)
class ReplicaFindings(Findings):
    """What such a run has left: `rows` are those of the database."""

    files: list[list[dict[str, Any]]] = field(default_factory=list)
    """The rows of each proxy's ledger file."""

    sums: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Table of sums -> turns and price."""

    limit_nanousd: int = 0
    proxies: int = 0
    stores_said: int = 0
    """Lines of logs in which proxies say that a store is away."""


class Replicas(Run):
    """The state of such a run under way."""

    def __init__(
        self, seed: int, requests: int, concurrency: int, folder: Path, say: Say, proxies: int, away_s: float = 0.0
    ) -> None:
        """`away_s`: the database is gone for so long, and nothing else breaks."""
        super().__init__(seed, requests, concurrency, folder, say)
        self._away_s = away_s
        self._budget = requests * NANOUSD_A_REQUEST // 2
        self._found: ReplicaFindings = ReplicaFindings(seed, limit_nanousd=self._budget, proxies=proxies)
        self._stores: dict[str, Server] = {}
        self._proxies: list[Proxy] = []
        self._dsn = ""

    async def go(self) -> ReplicaFindings:
        """All of it. Nothing of it is left running."""
        began_s = time.monotonic()
        try:
            await self._start()
            await self._all_under_load()
            await self._look_at_what_is_left()
        finally:
            for proxy in self._proxies:
                await asyncio.to_thread(proxy.process.stop)
            await asyncio.gather(*(engine.stop() for engine in self._engines.values()))
            for server in self._stores.values():
                await asyncio.to_thread(server.stop)
        self._found.wall_s = time.monotonic() - began_s
        return self._found

    async def _start(self) -> None:
        self._engines = {name: Engine(name, "aggregated", self._folder, SPEED) for name in ENGINES}
        postgres = Postgres()
        self._stores = {"postgres": postgres, "redis": Redis()}
        starts: list[Callable[[], None]] = [server.start for server in self._stores.values()]
        await asyncio.gather(*(engine.start() for engine in self._engines.values()), *map(asyncio.to_thread, starts))
        self._dsn = postgres.new_database()
        await asyncio.to_thread(migrate, self._dsn)
        keys = new_api_key()[0], new_api_key()[0]
        for number in range(self._found.proxies):
            self._proxies.append(Proxy(self._process(number, keys), number))
        await asyncio.gather(*(proxy.start() for proxy in self._proxies))

    def _process(self, number: int, keys: tuple[str, str]) -> ProxyProcess:
        """One of the proxies: a region and engines in common, a folder of its own."""
        folder = self._folder / f"p{number}"
        dsn_file, url_file = folder / "ledger.dsn", folder / "redis.url"
        folder.mkdir(parents=True)
        for file, text in ((dsn_file, self._dsn), (url_file, self._redis().url)):
            file.touch(0o600)
            file.write_text(text)
        usd = f"{self._budget / 1e9:.9f}"
        tables = f'[ledger]\ndsn_file = "{dsn_file}"\n[redis]\nurl_file = "{url_file}"\n'
        tables += f'[[budget]]\nname = "of-first"\ntenants = ["first"]\nusd_per_day = "{usd}"'
        return ProxyProcess(
            folder,
            [engine.toml() for engine in self._engines.values()],
            keys=keys,
            limits=f"{LIMITS}\n{tables}",
            second=f"requests_per_minute = {10 * self._requests}",
        )

    def _redis(self) -> Redis:
        found = self._stores["redis"]
        assert isinstance(found, Redis)
        return found

    def _postgres(self) -> Postgres:
        found = self._stores["postgres"]
        assert isinstance(found, Postgres)
        return found

    async def _all_under_load(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._break_stores())
            for number in range(self._concurrency):
                group.create_task(self._worker(self._proxies[number % len(self._proxies)]))

    async def _connected(self, proxy: Proxy) -> Line:
        """To a client's proxy, or to another one while that is away."""
        while True:
            alive = [each for each in (proxy, *self._proxies) if each.life is not None]
            life = await (alive[0] if alive else proxy).alive()
            try:
                return await Line.open(life)
            except OSError:
                if not life.dead:
                    raise
                self._found.turned_away += 1

    def asks_again(self, wish: Ask, seen: Seen) -> bool:
        """As always, and where its proxy was killed."""
        return seen.end == "killed" or super().asks_again(wish, seen)

    def pause_s(self, seen: Seen) -> float:
        """Short, but where the run has to last for as long as the database is away."""
        if self._away_s:
            return self._away_s * self._concurrency / (0.75 * self._requests)
        return min(seen.retry_after_s, LONGEST_PAUSE_S)

    async def _break_stores(self) -> None:
        locks = {name: asyncio.Lock() for name in self._stores}

        async def carry_out(fault: StoreFault) -> None:
            if fault.kind == "proxy":
                await self._proxies[int(fault.target)].kill_and_start()
                return
            async with locks[fault.target]:
                await strike(self._stores[fault.target], fault)

        faults = store_schedule(self._seed, self._requests, len(self._proxies))
        if self._away_s:
            faults = away_schedule(self._requests, self._away_s)
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                async with self._ended:
                    await self._ended.wait_for(lambda at=fault.at: len(self._found.seen) >= at)  # type: ignore[misc]
                self._say(str(fault))
                group.create_task(carry_out(fault))

    async def _look_at_what_is_left(self) -> None:
        found, proxies = self._found, self._proxies
        folders = [proxy.process.state_dir for proxy in proxies]
        await eventually(self._idle, IDLE_WITHIN_S)
        await eventually(lambda: not any(map(open_entries, folders)), IDLE_WITHIN_S)
        await eventually(self._all_sent, SENT_WITHIN_S)
        found.totals = await self._totals(proxies[0])
        found.files = [await asyncio.to_thread(proxy.stop) for proxy in proxies]
        postgres = self._postgres()
        found.rows = [as_row(line) for line in postgres.sql("SELECT record FROM turn ORDER BY settled_at", self._dsn)]
        for table in ("usage_hour", "usage_session"):
            (line,) = postgres.sql(f"SELECT sum(turns), sum(price_nanousd) FROM {table}", self._dsn)
            turns, price = line.split("|")
            found.sums[table] = int(turns), int(price)
        found.served = {name: engine.served() for name, engine in self._engines.items()}
        found.open_at_kill = [ids for proxy in proxies for ids in proxy.open_at_kill]
        said = [entry for proxy in proxies for entry in proxy.complaints()]
        found.complaints = [
            entry for entry in said if "Traceback" in entry or not any(name in entry for name in _OF_STORES)
        ]
        found.stores_said = len(said) - len(found.complaints)

    def _all_sent(self) -> bool:
        ended = sum(len(proxy.process.rows()) for proxy in self._proxies)
        return self._postgres().sql("SELECT count(*) FROM turn", self._dsn) == [str(ended)]


def as_row(record: str) -> dict[str, Any]:
    """A record as a row of the ledger file shows it."""
    entry = Entry.read(record)
    row = {name: getattr(entry, name) for name in COLUMNS}
    row["rids"] = msgspec.json.encode(entry.rids).decode()
    return row | {name: bytes(row[name]).decode() for name in ("workers", "usage")}
