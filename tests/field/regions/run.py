"""One run: the fleet, agents that enter anywhere, faults that come and go, and what is left to look at."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.field.chaos.client import Line, Seen
from tests.machine import seconds

from warmroute_proxy.core.accounting.entry import COLUMNS, Entry

from . import schedule
from .agents import TENANTS, Agent, Turn, agents, answer_canary, canary, with_home, with_key
from .namespaces import CLIENTS, Network
from .processes import DELAY_MS, FAR_MS, PROXIES, REGIONS, Fleet, Region, RegionalProxy, open_entries
from .schedule import CALM_TURNS, FAULT_TURNS, LOSS_PERCENT, LOSS_TURNS, OF_LINES, SETTLE_TURNS, Fault
from .wire import Wire

SPEED: Final = 50.0
KV_TOKENS: Final = 600_000
AT_ONCE: Final = 6
TRIES: Final = 4
WHOLE_WITHIN_S: Final = 90.0
_OVERLOAD_S: Final = 1.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Asked:
    """One try of a turn. `during`: the faults there were at any time from its begin to its end, and until then."""

    turn: Turn
    region: str
    proxy: str
    seen: Seen
    during: frozenset[str]
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Recovery:
    """How long a fault lasted, and how long until the fleet was whole after it."""

    fault: str
    lasted_s: float = 0.0
    whole_s: float = -1.0
    """Below 0: it never was."""

    turns: int = 0
    began_at: int = 0
    healed_at: int = 0
    """How many tries there were before it began, and before it was mended."""


@dataclass(slots=True)
class Findings:
    """What a run has left."""

    seed: int
    tried: list[Asked] = field(default_factory=list)
    unreached: int = 0
    """Tries that found no listener, or no way there."""

    files: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Proxy -> the rows of its ledger file."""

    database: list[dict[str, Any]] | None = None
    served: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    has_logs: bool = True
    """Whether engines have a log of what they served."""

    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Proxy -> its counters over all its lives."""

    counted_at_s: dict[int, float] = field(default_factory=dict)
    """Life that was stopped -> when it was asked for its counters: tries that ended later may not be in them."""

    recoveries: list[Recovery] = field(default_factory=list)
    still_working: dict[str, int] = field(default_factory=dict)
    open_at_end: dict[str, int] = field(default_factory=dict)
    orders_at_end: dict[str, int] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    old: str = ""
    """The region whose proxies run another commit, until they are replaced: what is new in receipts and announcements,
    they do not do.
    """

    killed: set[str] = field(default_factory=set)
    """Proxies that were killed at some time: what they counted last is lost."""

    wall_s: float = 0.0


class Run:
    """The state of a run under way."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        say: Say,
        faults: Sequence[Fault],
        *,
        turns: int = 0,
        policy: str = "cost",
        enters: str = "anywhere",
        kv_tokens: int = KV_TOKENS,
        database: bool = True,
        checkout: Path | None = None,
        real: bool = False,
    ) -> None:
        """`turns`: where nothing breaks; else as many as the faults last. `enters`: `anywhere`, `hashed`: every turn of
        an agent at the region that its number gives, or `first`: all at one region. `checkout`: of another
        commit, which the proxies of the last region run. Clocks are then equal, since an older proxy may allow for
        nothing else. `real`: engines are SGLang, which says what it likes.
        """
        self._seed = seed
        self._folder = folder
        self._say = say
        self._faults = faults
        self._turns = turns
        self._enters = enters
        self._kv_tokens = kv_tokens
        self._database = database
        self._found = Findings(seed, old="" if checkout is None else REGIONS[-1], has_logs=not real)
        self._network = Network(REGIONS)
        ahead_s = schedule.clocks_ahead_s(seed, REGIONS) if checkout is None else {}
        self._network.make()
        self._fleet = Fleet(self._network, folder, ahead_s, policy=policy, checkout=checkout, real=real)
        self._real = real
        self._wire = Wire(self._network, {tenant: canary(tenant).encode() for tenant in TENANTS if TENANTS[tenant]})
        self._ended = asyncio.Condition()
        self._active: set[str] = set()
        self._since: dict[str, set[str]] = {}
        self._over = False
        self._numbers = 0

    async def go(self) -> Findings:
        """All of it. Nothing of it is left running."""
        began_s = time.monotonic()
        try:
            await asyncio.to_thread(self._fleet.start, SPEED, self._kv_tokens, database=self._database)
            self._say(f"started in {time.monotonic() - began_s:.0f} s")
            self._wire.listen()
            await self._whole("start")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._break_things())
                source = agents(self._seed, 10**9, REGIONS, scripted=not self._real)
                for _ in range(AT_ONCE):
                    group.create_task(self._worker(source))
            await self._look_at_what_is_left()
        finally:
            self._wire.stop()
            await asyncio.to_thread(self._fleet.stop)
        self._found.wall_s = time.monotonic() - began_s
        return self._found

    # Clients

    async def _worker(self, source: Any) -> None:
        """One agent after another."""
        while not self._over:
            agent: Agent = next(source)
            home = ""
            for turn in agent.turns:
                seen = await self._turn(turn, home)
                home = seen.home if seen is not None and seen.home else home
                if self._ends():
                    break

    def _ends(self) -> bool:
        return self._over

    async def _turn(self, turn: Turn, home: str) -> Seen | None:
        """A turn; its client asks at another region where one does not answer, and again after an error."""
        ask = with_home(turn.ask, home) if turn.hints and home else turn.ask
        seen = None
        for number in range(TRIES):
            region, proxy = self._entry(turn, number)
            during = set(self._active)
            self._numbers += 1
            mark = str(self._numbers)
            tried = with_key(ask, mark) if turn.ask.number % 2 else ask
            self._since[mark] = during
            began_s = time.monotonic()
            try:
                life = proxy.life
                if life is None:
                    raise ConnectionRefusedError
                line = await asyncio.wait_for(Line.open(life), seconds(10))
            except (OSError, TimeoutError):
                self._found.unreached += 1
                del self._since[mark]
                await asyncio.sleep(0.01)
                continue
            try:
                seen = await line.exchange(tried, self._fleet.keys[turn.tenant])
            finally:
                line.close()
                del self._since[mark]
            asked = Asked(turn, region, proxy.name, seen, frozenset(during), began_s, time.monotonic())
            await self._note(asked)
            if seen.end == "whole":
                return seen
            await asyncio.sleep(min(seen.retry_after_s, 1.0))
        return seen

    def _entry(self, turn: Turn, number: int) -> tuple[str, RegionalProxy]:
        """The region and proxy that a try enters at."""
        region = turn.entry[number % len(turn.entry)]
        if self._enters == "hashed":
            region = REGIONS[(turn.agent + number) % len(REGIONS)]
        elif self._enters == "first":
            region = REGIONS[number % len(REGIONS)]
        proxies = self._fleet.regions[region].proxies
        return region, proxies[(turn.proxy + number // len(turn.entry)) % len(proxies)]

    async def _note(self, asked: Asked) -> None:
        self._found.tried.append(asked)
        async with self._ended:
            self._ended.notify_all()

    # Faults

    async def _break_things(self) -> None:
        try:
            for fault in self._faults:
                await self._turns_more(CALM_TURNS)
                self._say(f"after {len(self._found.tried)}: {fault}")
                recovery = Recovery(str(fault), began_at=len(self._found.tried))
                self._found.recoveries.append(recovery)
                self._set(fault, active=True)
                began_s = time.monotonic()
                await asyncio.to_thread(self._begin, fault)
                await self._turns_more(FAULT_TURNS)
                await self._felt(fault, recovery)
                await asyncio.to_thread(self._heal, fault)
                healed_s = time.monotonic()
                recovery.lasted_s = healed_s - began_s
                before = recovery.healed_at = len(self._found.tried)
                if await self._whole(str(fault)):
                    recovery.whole_s = time.monotonic() - healed_s
                recovery.turns = len(self._found.tried) - before
                await self._turns_more(SETTLE_TURNS)  # breakers close, and conversations that moved have moved
                self._set(fault, active=False)
                self._say(f"  whole {recovery.whole_s:.1f} s after it, {recovery.turns} turns")
            await self._turns_more(max(CALM_TURNS, self._turns))
        finally:
            self._over = True

    def _set(self, fault: Fault, *, active: bool) -> None:
        (self._active.add if active else self._active.discard)(str(fault))
        if active:
            for during in self._since.values():
                during.add(str(fault))

    async def _turns_more(self, count: int) -> None:
        until = len(self._found.tried) + count
        async with self._ended:
            await self._ended.wait_for(lambda: len(self._found.tried) >= until)

    async def _felt(self, fault: Fault, recovery: Recovery) -> None:
        """Wait until a fault of lines has met something: a probe, or with lost packets, 10 turns from there."""
        began_at = recovery.began_at
        if fault.kind == "loss":
            while sum(asked.region == fault.region for asked in self._found.tried[began_at:]) < LOSS_TURNS:
                await self._turns_more(1)
        elif fault.kind in OF_LINES or fault.kind in {"partition", "slow"}:
            deadline_s = time.monotonic() + seconds(WHOLE_WITHIN_S)
            while await asyncio.to_thread(self._is_whole):
                if time.monotonic() > deadline_s:
                    self._found.complaints.append(f"no proxy reports a region as down during {fault}")
                    return
                await asyncio.sleep(0.1)

    async def _whole(self, after: str) -> bool:
        """Whether each proxy has found each other region of the fleet, in time."""
        deadline_s = time.monotonic() + seconds(WHOLE_WITHIN_S)
        while not await asyncio.to_thread(self._is_whole):
            if time.monotonic() > deadline_s:
                self._found.complaints.append(f"the fleet is not whole {WHOLE_WITHIN_S:.0f} s after {after}")
                return False
            await asyncio.sleep(0.1)
        return True

    def _is_whole(self) -> bool:
        for proxy in self._fleet.proxies:
            if proxy.old:  # it may not say
                continue
            found = proxy.metrics()
            others = [each for each in REGIONS if each != proxy.region.name]
            if any(found.get(f'warmroute_region_up{{peer="{each}"}}') != 1.0 for each in others):
                return False
        return True

    def _others(self, fault: Fault) -> list[str]:
        return [fault.other] if fault.other else [each for each in REGIONS if each != fault.region]

    def _begin(self, fault: Fault) -> None:
        fleet, network, region = self._fleet, self._network, self._fleet.regions[fault.region]
        if fault.kind in {"partition", "cut"}:
            for other in self._others(fault):
                network.set_line(fault.region, other, up=False)
        elif fault.kind in {"one_way", "loss"}:
            for other in self._others(fault):
                network.drop(fault.region, other, 100 if fault.kind == "one_way" else LOSS_PERCENT)
        elif fault.kind in {"slow", "gray"}:
            back_ms = FAR_MS if fault.kind == "slow" else DELAY_MS
            for other in self._others(fault):
                fleet.set_delays(fault.region, other, FAR_MS, back_ms)
                fleet.set_delays(other, fault.region, back_ms, FAR_MS)
        elif fault.kind == "lost":
            self._found.killed |= {proxy.name for proxy in region.proxies}
            for proxy in region.proxies:
                proxy.kill()
            region.kill_engines()
        elif fault.kind in {"drain", "upgrade"}:
            for proxy in region.proxies:
                proxy.stop()
                proxy.old &= fault.kind != "upgrade"
                fleet.balance()
                fleet.start_proxies([proxy])
        elif fault.kind == "overload":
            region.slow_engines(_OVERLOAD_S, FAULT_TURNS)
        elif fault.kind == "leave":
            fleet.in_fleet.remove(fault.region)
            for proxy in region.proxies:
                proxy.stop()
            self._restart([proxy for proxy in fleet.proxies if proxy.region is not region])

    def _heal(self, fault: Fault) -> None:
        fleet, network, region = self._fleet, self._network, self._fleet.regions[fault.region]
        if fault.kind in {"partition", "cut"}:
            for other in self._others(fault):
                network.set_line(fault.region, other, up=True)
        elif fault.kind in {"one_way", "loss"}:
            network.drop_nothing()
        elif fault.kind in {"slow", "gray"}:
            for other in self._others(fault):
                fleet.set_delays(fault.region, other, DELAY_MS, DELAY_MS)
                fleet.set_delays(other, fault.region, DELAY_MS, DELAY_MS)
        elif fault.kind == "lost":
            region.begin_engines(SPEED, self._kv_tokens)
            region.listening_engines()
            fleet.start_proxies(region.proxies)
        elif fault.kind == "overload":
            region.slow_engines(0.0, 0)
        elif fault.kind == "leave":
            fleet.in_fleet.append(fault.region)
            fleet.in_fleet.sort(key=REGIONS.index)
            fleet.start_proxies(region.proxies)
            self._restart([proxy for proxy in fleet.proxies if proxy.region is not region])

    def _restart(self, proxies: Sequence[RegionalProxy]) -> None:
        """Half of each region, then the other half, as an operator rolls a change out."""
        for number in range(PROXIES):
            half = [proxy for proxy in proxies if proxy.number == number]
            for proxy in half:
                proxy.stop()
            self._fleet.balance()
            self._fleet.start_proxies(half)

    # The end

    async def _look_at_what_is_left(self) -> None:
        found, proxies = self._found, self._fleet.proxies
        await self._until(self._is_idle)
        await self._until(self._all_voided)
        if self._fleet.postgres is not None:
            await self._until(self._all_sent)
        found.counts = {proxy.name: await asyncio.to_thread(proxy.count) for proxy in proxies}
        found.counted_at_s = {life: at_s for proxy in proxies for life, at_s in proxy.counted_at_s.items()}
        self._wire.stop()
        found.leaks += self._wire.leaks
        for proxy in proxies:
            await asyncio.to_thread(proxy.stop)
            found.files[proxy.name] = proxy.rows()
            found.complaints += proxy.complaints()
        if self._fleet.postgres is not None:
            found.database = await asyncio.to_thread(self._database_rows)
        for region in self._fleet.regions.values():
            found.served |= region.served()
            found.leaks += await asyncio.to_thread(self._leaks_in, region)

    async def _until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + seconds(WHOLE_WITHIN_S)
        while not await asyncio.to_thread(condition) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.1)

    def _is_idle(self) -> bool:
        self._found.still_working = {name: region.working() for name, region in self._fleet.regions.items()}
        self._found.open_at_end = {proxy.name: open_entries(proxy.state_dir) for proxy in self._fleet.proxies}
        return not any(self._found.still_working.values()) and not any(self._found.open_at_end.values())

    def _all_voided(self) -> bool:
        """An order for a row that never came waits for two minutes, so it is none to wait for."""
        rows = [row for proxy in self._fleet.proxies for row in proxy.rows()]
        there = {row["id"] for row in rows} - {row["id"].removesuffix("-void") for row in rows if _is_void(row)}
        self._found.orders_at_end = {proxy.name: len(proxy.orders() & there) for proxy in self._fleet.proxies}
        return not any(self._found.orders_at_end.values())

    def _all_sent(self) -> bool:
        assert self._fleet.postgres is not None
        ended = sum(len(proxy.rows()) for proxy in self._fleet.proxies)
        return self._fleet.postgres.sql("SELECT count(*) FROM turn", self._fleet.dsn) == [str(ended)]

    def _database_rows(self) -> list[dict[str, Any]]:
        assert self._fleet.postgres is not None
        records = self._fleet.postgres.sql("SELECT record FROM turn ORDER BY settled_at", self._fleet.dsn)
        return [_as_row(record) for record in records]

    def _leaks_in(self, region: Region) -> list[str]:
        """Words of tenants that may not be served in a region, in what its processes wrote or its stores hold."""
        words = [
            (tenant, word(tenant).encode())
            for tenant, allowed in TENANTS.items()
            if allowed and region.name not in allowed
            for word in (canary, answer_canary)
        ]
        region.redis.save()
        written = {path: path.read_bytes() for path in region.folder.rglob("*") if path.is_file()}
        written |= {path: path.read_bytes() for path in region.redis.folder.rglob("*") if path.is_file()}
        if self._fleet.postgres is not None and region.address == self._fleet.postgres.host:
            self._fleet.postgres.sql("CHECKPOINT", self._fleet.dsn)
            data = self._fleet.postgres.data
            written |= {path: path.read_bytes() for path in (data / "base").rglob("*") if path.is_file()}
        return [
            f"{path.name} in {region.name} has a word of {tenant}"
            for path, text in written.items()
            for tenant, word in words
            if word in text
        ]


def _is_void(row: dict[str, Any]) -> bool:
    return str(row["id"]).endswith("-void")


def _as_row(record: str) -> dict[str, Any]:
    """A record as a row of the ledger file shows it."""
    entry = Entry.read(record)
    row = {name: getattr(entry, name) for name in COLUMNS}
    row["rids"] = msgspec.json.encode(entry.rids).decode()
    return row | {name: bytes(row[name]).decode() for name in ("workers", "usage")}


__all__ = ["CLIENTS", "Asked", "Findings", "Recovery", "Run"]
