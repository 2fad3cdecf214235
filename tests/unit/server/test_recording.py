"""The recording router decides as a plain one does, and its file is bounded and outlives faults."""

import asyncio
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from tests.subjects.documents import config_of
from tests.subjects.recorded import recorded_router
from tests.subjects.routing import routing_of

from warmroute_lab.replay.record import verify
from warmroute_proxy import COMPILED
from warmroute_proxy.core.cache.return_times import OVER, PERSON
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas import recorder as recorded
from warmroute_proxy.core.replicas.record import (
    Closed,
    Dispatched,
    Ended,
    Frames,
    Placed,
    RecordedCall,
    RecordedProgress,
)
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.ledger import recording
from warmroute_proxy.server.ledger.recording import Recording

WORKERS = [Worker(f"a{number}", f"a{number}", 0, "aggregated", frozenset({"m", "n"})) for number in range(3)]
PEERS = [Peer("west", 0.03)]
READ_ONLY = frozenset({
    "last_number", "turns_before", "announce_waits", "estimated_tokens", "regional_turn", "reports_hits", "seen",
    "engine_of", "are_only_usable", "full", "has_capacity", "has_capacity_at", "is_full", "last_settled",
    "may_forward", "next_end_s", "ranks_beside", "running", "snapshot", "waits_at_door",
})  # fmt: skip


def routing(number: int, *, model: str = "m", home: str | None = None, cuts: int = 4) -> RoutingRequest:
    chain = Chain([(number << 40) + cut for cut in range(cuts)], [2048 * (cut + 1) for cut in range(cuts)])
    allowed = frozenset({"east", "west"}) if number % 2 else None
    return routing_of(
        chain, model=model, lineage=number, session=2**64 - 1 - number, structural_bytes=2048, turn=1 + number % 3,
        expected_output_tokens=500, home_hint=home, allowed_regions=allowed,
    )  # fmt: skip


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    found = asyncio.new_event_loop()
    yield found
    found.close()


def calls(path: Path) -> list[RecordedCall]:
    with path.open("rb") as file:
        return [found.call for found in Frames(file.read)]


def traffic(router: Router) -> list[object]:
    """A life of a router with all that can happen in it; what it decided."""
    decisions: list[object] = []
    router.set_up("a0", False)
    router.set_peer_up(region="west", up=False)
    for number in range(40):
        now = float(number)
        asked = routing(number % 7, home="west" if number % 3 == 0 else None, cuts=2 + number % 5)
        decision = router.place(asked, now, frozenset({"a1"} if number % 5 == 0 else ()))
        decisions.append(decision)
        ticket = router.dispatched(asked, decision, now)
        if number % 4 == 0:
            router.failed(ticket, now + 0.1, {decision.cache_worker})
            continue
        router.first_token(ticket, now + 0.2)
        router.progress(ticket, 32)
        router.settled(ticket, asked, now + 0.5, 900 + number, 100, None if number % 2 else 30)
        router.first_token(ticket, now + 0.6)  # late news of a turn that ended
        if number == 10:
            router.set_up("a0", True)
            router.suspect_peer("west")
            router.set_peer_up("west", True)
        if number == 20:
            router.observe_loads("a2", EngineLoads(1, 400, 900, 5000, 900_000), now)
            router.observe_loads("a2", EngineLoads(0, 0, 0, 10, 10), now + 1)  # totals fell: it has begun anew
        if number == 22:
            router.cache_stored("a1", routing(number % 7).chain.hashes, "device")
            router.cache_removed("a2", keys=routing(3).chain.hashes[2:], tier="device")
            router.observe_moves("a1", "host", 4096, 0.01)
        if number == 24:
            router.cache_cleared("a0")
            router.observe_session(3, PERSON, now)
            router.observe_session(4, OVER, now)
        if number == 25:
            router.remove_worker("a1")
            router.add_worker(Worker("a3", "a3", 0, "aggregated"))
            router.set_draining("a2", True)
    try:
        router.place(routing(1, model="unknown"), 99.0, frozenset({"a3", "region:west"}))
    except NoWorker as error:
        decisions.append(error.served)
    return decisions


def test_it_decides_as_a_plain_router_and_its_record_plays_back(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    kept = Recording(tmp_path / "record", loop)
    told = recorded_router(kept.write, "1.2.3", "east", WORKERS, PEERS)
    plain = Router("east", WORKERS, PEERS)
    assert traffic(told) == traffic(plain)
    assert told.snapshot(50.0) == plain.snapshot(50.0)
    assert told.last_settled(routing(4)) == plain.last_settled(routing(4)) is not None
    kept.close()
    verdict = verify(tmp_path / "record")
    assert verdict == ("1.2.3", 41, 0, None, None, "the proxy stopped")


def test_calls_that_a_router_makes_to_itself_are_not_written(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    kept = Recording(tmp_path / "record", loop)
    router = recorded_router(kept.write, "1", "east", WORKERS)
    asked = routing(1)
    ticket = router.dispatched(asked, router.place(asked, 1.0), 1.0)
    router.settled(ticket, asked, 2.0, 900, 0, 1)
    router.progress(ticket, 5)
    kept.close()
    names = [type(call) for call in calls(tmp_path / "record")]
    assert names[1:] == [Placed, Dispatched, Ended, Closed]
    assert RecordedProgress not in names


OF_ATTEMPTS = {"place", "dispatched", "first_token", "progress", "settled", "failed"}
OF_REPLICAS = {"learn_turn", "forget_history", "end_history", "remember"}
"""What replicas apply events by, which are recorded themselves."""


def test_every_method_that_changes_a_router_is_recorded() -> None:
    """One that is in neither set would change the router without a trace in the record."""
    public = {name for name in dir(Router) if name[0] != "_" and callable(getattr(Router, name))}
    recorded_methods = {*recorded.FLEET_UPDATES, *OF_ATTEMPTS}
    assert recorded_methods <= public
    assert public - recorded_methods == READ_ONLY | OF_REPLICAS
    properties = [name for name in dir(Router) if isinstance(getattr(Router, name), property)]
    assert properties == []


def test_what_a_router_is_told_is_read_back_by_the_types_of_its_arguments() -> None:
    for name, types in recorded.FLEET_UPDATES.items():
        method = getattr(Router, name)
        assert list(inspect.signature(method).parameters)[1:] == list(types)
        hints = get_type_hints(method)
        assert COMPILED or hints == types | {"return": type(None)}  # what is compiled shows no types


def test_a_home_that_is_no_region_is_not_written(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    kept = Recording(tmp_path / "record", loop)
    router = recorded_router(kept.write, "1", "east", WORKERS, PEERS)
    asked = routing(1, home="sk-CANARY-in-the-wrong-header")
    ticket = router.dispatched(asked, router.place(asked, 1.0), 1.0)
    router.settled(ticket, routing(1, home="another CANARY"), 2.0, 900, 0, 1)
    router.place(routing(2, home="west"), 3.0)
    kept.close()
    data = (tmp_path / "record").read_bytes()
    assert b"CANARY" not in data
    homes = [call.routing.home_hint for call in calls(tmp_path / "record") if isinstance(call, Placed)]
    assert homes == ["?", "west"]
    assert verify(tmp_path / "record").differing == 0


def test_a_record_ends_at_its_limit_and_says_so(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    kept = Recording(tmp_path / "record", loop, limit_bytes=10_000)
    traffic(recorded_router(kept.write, "1", "east", WORKERS, PEERS))
    kept.close()
    assert 9_000 < (tmp_path / "record").stat().st_size < 10_100
    verdict = verify(tmp_path / "record")
    assert verdict.closed == "the limit of 10000 bytes"
    assert 0 < verdict.decisions < 41
    assert verdict.differing == 0


def test_a_disk_that_is_too_slow_ends_the_record_and_not_the_memory(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_WAITING_BYTES", 5_000)
    kept = Recording(tmp_path / "record", loop)  # the loop does not run: nothing is handed to the disk
    traffic(recorded_router(kept.write, "1", "east", WORKERS, PEERS))
    kept.close()
    assert verify(tmp_path / "record").closed == "the disk is too slow"
    assert (tmp_path / "record").stat().st_size < 7_000


def test_a_full_disk_ends_the_record_and_no_request(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Recording(tmp_path / "record", loop)

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        router = recorded_router(kept.write, "1", "east", WORKERS, PEERS)
        assert len(traffic(router)) == 41
        kept.close()
    assert (tmp_path / "record").read_bytes() == b""


def test_a_call_that_cannot_be_written_ends_the_record_and_no_request(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    kept = Recording(tmp_path / "record", loop)
    router = recorded_router(kept.write, "1", "east", WORKERS, PEERS)
    asked = routing(1)
    msgspec.structs.force_setattr(asked, "turn", 2**70)
    assert router.place(asked, 1.0).kind == "local"
    kept.close()
    assert verify(tmp_path / "record").closed == "a call cannot be written: OverflowError"


def test_the_record_of_an_earlier_process_is_kept_once(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    for software in ("1", "2", "3"):
        kept = Recording(tmp_path / "deep" / "record", loop)
        recorded_router(kept.write, software, "east", WORKERS)
        kept.close()
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["record", "record.old"]
    assert verify(tmp_path / "deep" / "record").software == "3"
    assert verify(tmp_path / "deep" / "record.old").software == "2"


def test_what_is_no_record_is_left_as_it_is(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("something else\n")
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "file", "pipe"):
        with pytest.raises(OSError, match="there is "):
            Recording(tmp_path / name, loop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "pipe"]


def test_the_path_of_a_record_is_relative_to_the_folder_of_the_config(tmp_path: Path) -> None:
    named = {"region": "east", "record": "kept/decisions.record"}
    assert config_of(tmp_path, proxy=named).proxy.record == tmp_path / "kept" / "decisions.record"
    assert config_of(tmp_path).proxy.record is None
    with pytest.raises(ConfigError, match=r"proxy\.record: must be a string"):
        config_of(tmp_path, proxy={"region": "east", "record": 1})
