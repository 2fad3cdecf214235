"""What a process hears of the others, of one that dies, and of the time before it was started."""

import asyncio
from collections.abc import Callable

import msgspec
from tests.machine import seconds

from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.core.replicas.peer_router import PeerRouter
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.processes.peer_processes import Holding, Message, PeerProcesses, share_metrics
from warmroute_proxy.server.processes.shared_memory import SharedMemory

ENGINES = [
    EngineConfig(f"e{number}", f"http://127.0.0.1:{9 + number}", "", "aggregated", "sglang", frozenset("*"), None, None)
    for number in range(2)
]
FACTS = Facts("m", 1, 2, False, None, Chain([11, 12, 13], [3000, 6000, 9000]), 0, 1, 100, None, None, False)
NOTHING = Holding(0, 0, 0, 0, 0, 0)


class Process:
    """One seat at a board, without any sockets."""

    def __init__(self, board: SharedMemory, number: int, life: int) -> None:
        board.lanes[number].life = life
        loop = asyncio.get_running_loop()
        self.metrics = Metrics()
        self.engines = Engines(ENGINES, 1.0, loop.time, loop.time, self.metrics)
        self.peer_processes = PeerProcesses(board, number, loop.time, loop)
        self.router = PeerRouter(
            "", self.engines.workers(), send=self.peer_processes.tell, receive=self.peer_processes.listen
        )
        self.peer_processes.start(self.router, self.engines, self.metrics)

    def send(self) -> str:
        now_s = asyncio.get_running_loop().time()
        decision = self.router.place(FACTS, now_s)
        self.router.dispatched(FACTS, decision, now_s)
        return decision.cache_worker

    def running(self) -> int:
        self.peer_processes.listen()
        return sum(self.router.running(worker.id) for worker in self.engines.workers())

    def predicted(self) -> int:
        return self.router.place(FACTS, asyncio.get_running_loop().time()).predicted_cached_tokens


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds(20)):
        while not condition():
            await asyncio.sleep(0.002)


async def test_what_one_sends_the_other_sees_until_it_dies() -> None:
    board = SharedMemory(2)
    first, second = Process(board, 0, 1), Process(board, 1, 2)
    cache_worker = first.send()
    await until(lambda: second.running() == 1)
    assert second.predicted() > 0
    assert second.router.place(FACTS, 0.0).cache_worker == cache_worker
    board.lanes[0].life = 0
    assert second.running() == 0
    assert second.predicted() > 0, "the prompt is still cached there"


async def test_a_process_that_starts_again_knows_what_was_sent_and_counts_on() -> None:
    board = SharedMemory(2)
    first, second = Process(board, 0, 1), Process(board, 1, 2)
    first.send()
    second.metrics.add("warmroute_retries_total", 3)
    second.peer_processes.publish(second.metrics, NOTHING)
    await until(lambda: second.running() == 1)
    board.lanes[1].life = 0
    again = Process(board, 1, 3)
    assert again.predicted() > 0
    assert again.running() == 1, "of the first one, which lives"
    again.metrics.add("warmroute_retries_total")
    again.peer_processes.publish(again.metrics, NOTHING)
    assert share_metrics(first.metrics, first.peer_processes.rows()).value("warmroute_retries_total") == 4


async def test_its_own_predecessor_s_requests_are_load_no_more() -> None:
    board = SharedMemory(2)
    first, second = Process(board, 0, 1), Process(board, 1, 2)
    first.send()
    await until(lambda: second.running() == 1)
    board.lanes[0].life = 0
    again = Process(board, 0, 3)
    assert (again.running(), second.running()) == (0, 0)
    assert again.predicted() > 0
    again.send()
    await until(lambda: second.running() == 1)


async def test_what_an_operator_says_to_one_all_do_also_who_comes_later() -> None:
    board = SharedMemory(3)
    first, second = Process(board, 0, 1), Process(board, 1, 2)
    first.engines.drain("e0", "operator", True, first.router)
    first.peer_processes.drained("e0", True)
    await until(lambda: second.running() == 0 and second.engines.drains.draining("e0"))
    for _ in range(3):
        assert second.send() == "e1"
    first.peer_processes.publish(first.metrics, NOTHING)
    third = Process(board, 2, 3)
    assert third.engines.drains.draining("e0")
    first.engines.drain("e0", "operator", False, first.router)
    first.peer_processes.drained("e0", False)
    await until(lambda: second.running() == 3 and not second.engines.drains.draining("e0"))


async def test_what_one_hears_of_health_all_know() -> None:
    board = SharedMemory(2)
    first, second = Process(board, 0, 1), Process(board, 1, 2)
    first.peer_processes.asked("e0", None)
    first.peer_processes.asked("e0", 503)

    def heard() -> bool:
        second.peer_processes.listen()
        return second.engines.by_id["e0"].health_monitor.unwell

    await until(heard)
    assert not second.engines.by_id["e1"].health_monitor.unwell


async def test_who_has_missed_messages_forgets_the_load_that_it_cannot_know() -> None:
    board = SharedMemory(2, 16_384)
    first, second = Process(board, 0, 1), Process(board, 1, 2)
    first.send()
    await until(lambda: second.running() == 1)
    for _ in range(900):
        board.lanes[0].tell(msgspec.msgpack.encode(Message(1, 0.0, [])))
    assert second.running() == 0
    first.send()
    await until(lambda: second.running() == 1)
