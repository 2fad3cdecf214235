"""What a process hears of the others, of one that dies, and of the time before it was started."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.machine import seconds

from warmroute.contract.conversations import Conversations
from warmroute_proxy.core.load.conditions import RAISE_AFTER
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.replica import Replica
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.minutes import Row
from warmroute_proxy.server.control.metrics_page import MetricsPage
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.processes.peer_processes import Gauges, Message, PeerProcesses, summed_metrics
from warmroute_proxy.server.processes.shared_memory import SharedMemory

ENGINES = [
    EngineConfig(f"e{number}", f"http://127.0.0.1:{9 + number}", "", "aggregated", "sglang", frozenset("*"), None, None)
    for number in range(2)
]
ROUTING = RoutingRequest("m", 1, 2, False, None, Chain([11, 12, 13], [3000, 6000, 9000]), 0, 1, 100, None, None, False)
NOTHING = Gauges(0, 0, 0, 0, 0, 0, 0, 0)


class Process:
    """One process with shared memory, without any sockets."""

    def __init__(self, shared_memory: SharedMemory, number: int, generation: int) -> None:
        shared_memory.lanes[number].generation = generation
        loop = asyncio.get_running_loop()
        self.metrics = Metrics()
        self.peer_processes = PeerProcesses(shared_memory, number, loop.time, loop)
        self.engines = Engines(ENGINES, 1.0, loop.time, loop.time, self.metrics, peer_updates=self.peer_processes)
        replica = Replica(
            "", self.engines.workers(), send=self.peer_processes.send, receive=self.peer_processes.apply_updates
        )
        name, send_newest = f"process{number}", self.peer_processes.send_newest
        receive = self.peer_processes.apply_updates
        self.conversations = Conversations(name, lambda newest, _regions: send_newest(newest), receive)
        self.router = replica.router
        self.peer_processes.start(replica, self.engines, self.metrics, self.conversations)

    def send(self) -> str:
        now_s = asyncio.get_running_loop().time()
        decision = self.router.place(ROUTING, now_s)
        self.router.dispatched(ROUTING, decision, now_s)
        return decision.cache_worker

    def running(self) -> int:
        self.peer_processes.apply_updates()
        return sum(self.router.running(worker.id) for worker in self.engines.workers())

    def page(self, *troubles: str) -> MetricsPage:
        nothing = SimpleNamespace(ran=lambda *_: None)
        parts: Any = self.metrics, lambda: NOTHING, self.router, self.engines, self.peer_processes, nothing, []
        return MetricsPage(*(*parts, lambda: troubles))

    def predicted(self) -> int:
        return self.router.place(ROUTING, asyncio.get_running_loop().time()).predicted_cached_tokens


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds(20)):
        while not condition():
            await asyncio.sleep(0.002)


async def test_what_one_sends_the_other_sees_until_it_dies() -> None:
    shared_memory = SharedMemory(2)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    cache_worker = first.send()
    await until(lambda: second.running() == 1)
    assert second.predicted() > 0
    assert second.router.place(ROUTING, 0.0).cache_worker == cache_worker
    shared_memory.lanes[0].generation = 0
    assert second.running() == 0
    assert second.predicted() > 0, "the prompt is still cached there"


async def test_a_process_that_starts_again_knows_what_was_sent_and_counts_on() -> None:
    shared_memory = SharedMemory(2)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    first.send()
    second.metrics.add(declared.RETRIES_TOTAL, 3)
    second.peer_processes.publish(second.metrics, NOTHING)
    await until(lambda: second.running() == 1)
    shared_memory.lanes[1].generation = 0
    again = Process(shared_memory, 1, 3)
    assert again.predicted() > 0
    assert again.running() == 1, "of the first one, which lives"
    again.metrics.add(declared.RETRIES_TOTAL)
    again.peer_processes.publish(again.metrics, NOTHING)
    assert summed_metrics(first.metrics, first.peer_processes.reports()).value(declared.RETRIES_TOTAL) == 4


async def test_what_each_process_sees_is_counted_once() -> None:
    shared_memory = SharedMemory(2)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    sent, received = (("result", "sent"),), (("result", "received"),)
    applied, refused = (("outcome", "applied"),), (("outcome", "refused"),)
    for process in (first, second):
        for metric, labels in (
            (declared.RELOADS_TOTAL, applied),
            (declared.RELOADS_TOTAL, refused),
            (declared.KV_EVENT_RESTARTS_TOTAL, (("worker", "e0"),)),
            (declared.KV_INDEX_DROPS_TOTAL, (("worker", "e0"),)),
            (declared.SHARED_EVENTS_TOTAL, received),
            (declared.SHARED_EVENTS_TOTAL, sent),
        ):
            process.metrics.add(metric, 1, labels)
    second.peer_processes.publish(second.metrics, NOTHING)
    total = summed_metrics(first.metrics, first.peer_processes.reports())
    assert total.total(declared.KV_EVENT_RESTARTS_TOTAL) == 1
    assert [total.value(declared.RELOADS_TOTAL, each) for each in (applied, refused)] == [1, 2]
    assert total.total(declared.KV_INDEX_DROPS_TOTAL) == 2, "each process loses other events"
    assert [total.value(declared.SHARED_EVENTS_TOTAL, each) for each in (received, sent)] == [1, 2]


async def test_the_counters_of_a_worker_end_on_all_pages_when_the_first_process_drops_it() -> None:
    shared_memory = SharedMemory(2)
    processes = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    pages = [process.page() for process in processes]
    for process, page in zip(processes, pages, strict=True):
        for worker in ("e0", "e1"):
            process.metrics.add(declared.KV_INDEX_DROPS_TOTAL, 1, (("worker", worker),))
        page.publish()
    rows = [f'warmroute_kv_index_drops_total{{worker="{worker}"}} 2' for worker in ("e0", "e1")]
    assert [[row for row in page.render().splitlines() if "index_drops_total{" in row] for page in pages] == [rows] * 2
    del processes[0].engines.by_id["e0"]
    for at_s in (0.0, 1.0):
        pages[0].publish()
        found = [[row for row in page.render().splitlines() if "index_drops_total{" in row] for page in pages]
        assert found == [rows[1:]] * 2
        processes[0].engines.watching.observe_region(processes[0].engines.workers(), at_s)


async def test_the_last_hour_is_that_of_all_processes_and_of_those_that_died() -> None:
    shared_memory = SharedMemory(2)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    first.metrics.minutes.add("a", Row(turns=1))
    second.metrics.minutes.add("a", Row(turns=2))
    second.peer_processes.publish(second.metrics, NOTHING)
    shared_memory.lanes[1].generation = 0
    assert sum(minute.all().turns for minute in first.page().minutes()) == 3
    again = Process(shared_memory, 1, 3)
    again.metrics.minutes.add("b", Row(turns=4))
    assert sum(minute.all().turns for minute in again.page().minutes()) == 6, "of the first one nothing is published"
    again.peer_processes.publish(again.metrics, NOTHING)
    assert sum(minute.all().turns for minute in first.page().minutes()) == 7


async def test_its_own_predecessor_s_requests_are_load_no_more() -> None:
    shared_memory = SharedMemory(2)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    first.send()
    await until(lambda: second.running() == 1)
    shared_memory.lanes[0].generation = 0
    again = Process(shared_memory, 0, 3)
    assert (again.running(), second.running()) == (0, 0)
    assert again.predicted() > 0
    again.send()
    await until(lambda: second.running() == 1)


async def test_what_an_operator_says_to_one_all_do_also_who_comes_later() -> None:
    shared_memory = SharedMemory(3)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    first.engines.drain("e0", "operator", True, first.router)
    first.peer_processes.send_drain("e0", True)
    await until(lambda: second.running() == 0 and second.engines.drains.draining("e0"))
    for _ in range(3):
        assert second.send() == "e1"
    first.peer_processes.publish(first.metrics, NOTHING)
    third = Process(shared_memory, 2, 3)
    assert third.engines.drains.draining("e0")
    first.engines.drain("e0", "operator", False, first.router)
    first.peer_processes.send_drain("e0", False)
    await until(lambda: second.running() == 3 and not second.engines.drains.draining("e0"))


async def test_what_one_hears_of_health_all_know() -> None:
    shared_memory = SharedMemory(2)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    first.peer_processes.send_health("e1", "http://127.0.0.1:99", 503)  # the engine that was e1 before
    first.peer_processes.send_health("e0", ENGINES[0].url, None)
    first.peer_processes.send_health("e0", ENGINES[0].url, 503)

    def heard() -> bool:
        second.peer_processes.apply_updates()
        return second.engines.by_id["e0"].health_monitor.unwell

    await until(heard)
    assert not second.engines.by_id["e1"].health_monitor.unwell


async def test_a_trouble_of_one_process_is_on_the_metrics_page_of_each_while_that_process_lives() -> None:
    shared_memory = SharedMemory(2)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    pages = [first.page("redis_away"), second.page()]
    rows = [f'warmroute_trouble{{trouble="{name}"}} {value}' for name, value in (("redis_away", 1), ("no_engine", 0))]
    for page in pages:
        page.publish()
    for page in pages:
        assert set(rows) <= set(page.render().splitlines())
    shared_memory.lanes[0].generation = 0
    assert rows[0] not in pages[1].render().splitlines()


async def test_a_condition_that_one_process_observes_holds_for_all_while_that_process_lives() -> None:
    shared_memory = SharedMemory(2)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    for at_s in range(RAISE_AFTER):
        first.engines.watching.miscounted("e0", "cached_tokens", -1, float(at_s))
    row = 'warmroute_condition{condition="counts_are_impossible",subject="e0"} 1'
    first.page().publish()
    for process in (first, second):
        assert row in process.page().render().splitlines()
        assert [each["subject"] for each in process.engines.watching.as_dict(9.0)["raised"]] == ["e0"]
    shared_memory.lanes[0].generation = 0
    assert row not in second.page().render().splitlines()


async def test_who_has_missed_messages_forgets_the_load_that_it_cannot_know() -> None:
    shared_memory = SharedMemory(2, 16_384)
    first, second = Process(shared_memory, 0, 1), Process(shared_memory, 1, 2)
    first.send()
    await until(lambda: second.running() == 1)
    for _ in range(900):
        shared_memory.lanes[0].append(msgspec.msgpack.encode(Message(1, 0.0, [])))
    assert second.running() == 0
    first.send()
    await until(lambda: second.running() == 1)
