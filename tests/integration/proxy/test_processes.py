"""Several processes on one port: clients and operators see one proxy, whichever of them dies."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.stopped import Several
from tests.subjects.websockets import Socket
from warmroute_lab.replay.record import verify
from warmroute_proxy.server.ledger.ledger import read_rows

from .test_faults import Stream

pytestmark = pytest.mark.full

COUNT = 3
SAYS = {"script": json.dumps([{"text": "I have looked at it."}])}
REQUESTS = 'warmroute_requests_total{route="/v1/chat/completions",status="200"}'


class Scene(NamedTuple):
    """Engines behind a proxy of several processes."""

    proxy: ProxyProcess
    engines: list[EngineProcess]

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self.proxy.line["processes"]]

    def ask(self, turns: int = 1, text: str = "hello") -> httpx.Response:
        """On a connection of its own: the system chooses the process."""
        with self.proxy.client() as client:
            return client.post("/v1/chat/completions", json=chat(text, turns=turns))

    def metric(self, line: str) -> float:
        """The sum over all processes; they write their rows some times a second."""
        return self.proxy.metric(f"{line} ")

    def running(self) -> dict[str, int]:
        """Requests under way by worker, as some process sees it."""
        with self.proxy.admin() as admin:
            workers = admin.get("/admin/workers").json()["workers"]
        return {name: int(worker["running"]) for name, worker in workers.items()}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("processes")
    with (
        Several([EngineProcess(folder, name, "aggregated", speed=2.0) for name in ("east-a0", "east-a1")]) as engines,
        serving(folder, engines, COUNT) as proxy,
    ):
        yield Scene(proxy, engines)


def serving(folder: Path, engines: list[EngineProcess], processes: int, **more: Any) -> ProxyProcess:
    tables = [engine.toml("east") for engine in engines]
    return ProxyProcess(folder / "p", tables, extra=f"processes = {processes}", **more)


def processes_that_answered(scene: Scene) -> Counter[str]:
    """Rows of the ledger by the process whose journal they came from are not kept: so by a prefix of their rids, which
    each process draws for itself."""
    rows = read_rows(scene.proxy.state_dir / "ledger.sqlite")
    return Counter(str(row["rids"])[2:22] for row in rows)


class TestOneProxy:
    def test_connections_go_to_all_processes_and_a_session_is_warm_at_each(self, scene: Scene) -> None:
        before = len(read_rows(scene.proxy.state_dir / "ledger.sqlite"))
        answers = [scene.ask(1 + turn, "warm") for turn in range(16)]
        usages = [answer.json()["usage"] for answer in answers]
        served_by = {usage["warmroute"]["workers"][0]["id"] for usage in usages}
        assert len(served_by) == 1, "each process knows where the others have sent the session"
        assert all(usage["warmroute"]["predicted_cached"] > 0 for usage in usages[1:])
        assert all(usage["prompt_tokens_details"]["cached_tokens"] > 0 for usage in usages[1:])
        scene.proxy.rows(before + 16)
        assert len(processes_that_answered(scene)) > 1

    def test_a_conversation_without_a_key_is_one_session_at_all_of_them(self, scene: Scene) -> None:
        before = processes_that_answered(scene)
        receipts = [scene.ask(turn, "unnamed").json()["usage"]["warmroute"] for turn in range(1, 13)]
        assert len({receipt["session"] for receipt in receipts}) == 1
        assert scene.ask(3, "unnamed").json()["usage"]["warmroute"]["session"] != receipts[0]["session"]
        scene.proxy.rows(sum(before.values()) + 13)
        assert len(processes_that_answered(scene) - before) > 1

    def test_a_websocket_of_another_process_is_sent_the_conversation_again_and_it_is_warm(self, scene: Scene) -> None:
        with ExitStack() as stack:
            opened: dict[str, tuple[Socket, list[Any], dict[str, Any], Any]] = {}
            for number in range(50):
                socket = stack.enter_context(Socket(scene.proxy))
                asked = [{"role": "user", "content": f"connection {number} " * 200}]
                first = socket.answer(input=asked, metadata=SAYS)
                row = scene.proxy.row(first["usage"]["warmroute"]["id"])
                opened[str(row["rids"])[2:22]] = socket, asked, first, row
                if len(opened) == 2:
                    break
            (one, asked, first, row), (other, *_) = opened.values()
            more = {"role": "user", "content": "more"}
            refused = other.ask(input=[more], previous_response_id=first["id"])
            assert refused["error"]["code"] == "previous_response_not_found"
            again = other.answer(input=[*asked, *first["output"], more], metadata=SAYS)
            usage = again["usage"]["warmroute"]
            assert scene.proxy.row(usage["id"])["session"] == row["session"]
            assert usage["workers"] == first["usage"]["warmroute"]["workers"]
            assert again["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"] - 64
            further = other.answer(input=[more], previous_response_id=again["id"], metadata=SAYS)
            assert scene.proxy.row(further["usage"]["warmroute"]["id"])["session"] == row["session"]
            assert one.answer(input=[more], previous_response_id=first["id"], metadata=SAYS)["output"]

    def test_a_receipt_is_found_by_any_process_at_once_and_totals_are_right_to_the_last_turn(
        self, scene: Scene
    ) -> None:
        with scene.proxy.client() as client:
            turns = client.get("/v1/usage").json()["turns"]
        for number in range(1, 9):
            usage = scene.ask().json()["usage"]["warmroute"]
            for _ in range(3):
                with scene.proxy.client() as client:
                    found = client.get(f"/v1/usage/receipts/{usage['id']}")
                    assert (found.status_code, found.json()["state"]) == (200, "settled")
                    assert found.json()["usage"]["warmroute"] == usage
                    for question in ("", "?by=model", "?since=1d"):
                        assert client.get(f"/v1/usage{question}").json()["turns"] == turns + number
                    assert client.get("/v1/usage/receipts?limit=1").json()["data"][0]["id"] == usage["id"]
                with scene.proxy.client(1) as other:
                    assert other.get(f"/v1/usage/receipts/{usage['id']}").status_code == 404

    def test_metrics_are_sums(self, scene: Scene) -> None:
        name = 'warmroute_turns_total{outcome="completed"}'
        ids = {scene.ask().json()["usage"]["warmroute"]["id"] for _ in range(10)}

        def is_sum() -> bool:
            completed = {row["id"] for row in scene.proxy.rows() if row["outcome"] == "completed"}
            return ids <= completed and scene.metric(name) == len(completed)

        until(is_sum, "each process has told what it counted")
        assert scene.metric("warmroute_processes") == COUNT

    def test_metrics_never_fall_whichever_process_is_asked(self, scene: Scene) -> None:
        seen = []
        for _ in range(8):
            assert scene.ask().status_code == 200
            seen += [scene.metric(REQUESTS) for _ in range(3)]
        assert seen == sorted(seen)
        until(lambda: scene.metric(REQUESTS) >= max(8, seen[-1]), "each process has told what it counted")

    def test_all_processes_drain_what_an_operator_drains(self, scene: Scene) -> None:
        with scene.proxy.admin() as admin:
            assert admin.post("/admin/engines/east-a0/drain").json()["state"] == "draining"
        try:
            until(lambda: all(by(scene) == "east-a1" for _ in range(6)), "all of them have heard of it")
        finally:
            with scene.proxy.admin() as admin:
                assert admin.delete("/admin/engines/east-a0/drain").json()["state"] == "up"


def by(scene: Scene) -> str:
    """The engine that answers."""
    return str(scene.ask(text="drained").json()["usage"]["warmroute"]["workers"][0]["id"])


def long_stream(scene: Scene, number: int) -> Stream:
    """A process serves it until somebody kills that process."""
    return Stream(scene.proxy, chat(f"long {number}", stream=True, max_tokens=800, ignore_eos=True))


class TestAProcessThatDies:
    def test_the_others_go_on_and_its_open_turns_are_interrupted_and_load_no_more(self, scene: Scene) -> None:
        streams = [long_stream(scene, number) for number in range(9)]
        until(lambda: all(stream.text for stream in streams), "all streams have begun")
        with scene.engines[0].held(), scene.engines[1].held():  # else some might have ended by then
            until(lambda: sum(scene.running().values()) == 9, "each process knows of all of them")
            victim = scene.pids[0]
            counted = scene.metric(REQUESTS)
            os.kill(victim, signal.SIGKILL)
        for _ in range(6):
            answer = httpx.Response(503)

            def served() -> bool:
                nonlocal answer
                try:
                    answer = scene.ask(text="meanwhile")
                except httpx.HTTPError:  # the system had dealt the connection to the process that died
                    return False
                return answer.status_code == 200

            until(served, "the others serve")
        for stream in streams:
            stream.join(seconds(60))
        broken = [stream for stream in streams if not stream.clean]
        assert all("[DONE]" not in stream.text for stream in broken)
        assert all("[DONE]" in stream.text for stream in streams if stream.clean)

        def states() -> dict[str, str]:
            rows = read_rows(scene.proxy.state_dir / "ledger.sqlite")
            found = {str(row["id"]): str(row["state"]) for row in rows}
            return {stream.receipt: found.get(stream.receipt, "") for stream in streams}

        until(lambda: all(states().values()), "each stream has its row")
        expected = {stream.receipt: "settled" if stream.clean else "interrupted" for stream in streams}
        assert states() == expected
        interrupted = 'warmroute_turns_total{outcome="interrupted"}'
        until(lambda: scene.metric(interrupted) == len(broken), "they are counted")
        until(lambda: sum(scene.running().values()) == 0, "what the dead one had under way is load no more")
        until(lambda: scene.metric("warmroute_processes") == COUNT, "it was started again")
        assert scene.metric(REQUESTS) >= counted
        until(lambda: all(engine.running() == 0 for engine in scene.engines), "engines have nothing of it either")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    """As slow as those of the scene."""
    with EngineProcess(tmp_path, "east-a0", "aggregated", speed=2.0) as found:
        yield found


def test_sigterm_ends_all_of_them(tmp_path: Path, engine: EngineProcess) -> None:
    with serving(tmp_path, [engine], 2) as proxy:
        scene = Scene(proxy, [engine])
        pids = scene.pids
        for _ in range(4):
            scene.ask()
    assert all(not alive(pid) for pid in pids)
    assert len(proxy.rows(4)) == 4
    assert not list(proxy.state_dir.glob("**/journal-*"))
    with serving(tmp_path, [engine], 1, keys=proxy.keys) as fewer, fewer.client() as client:  # the same folder
        assert client.get("/v1/usage").json()["turns"] == 4


def test_processes_whose_parent_is_killed_end_too_and_the_next_proxy_goes_on(
    tmp_path: Path, engine: EngineProcess
) -> None:
    with serving(tmp_path, [engine], 2) as proxy:
        scene = Scene(proxy, [engine])
        pids = scene.pids
        scene.ask()
        proxy.kill()
        until(lambda: all(not alive(pid) for pid in pids), "orphans end")
    with serving(tmp_path, [engine], 3, keys=proxy.keys) as again, again.client() as client:
        assert client.get("/v1/usage").json()["turns"] == 1


def test_what_all_of_them_left_open_is_counted_by_the_next_proxy(tmp_path: Path, engine: EngineProcess) -> None:
    with serving(tmp_path, [engine], 2) as proxy:
        scene = Scene(proxy, [engine])
        streams = [long_stream(scene, number) for number in range(2)]
        until(lambda: all(stream.text for stream in streams), "both have begun")
        for pid in scene.pids:
            os.kill(pid, signal.SIGSTOP)  # so that none sees the parent die: they go with their turns open
        proxy.kill()
        for pid in scene.pids:
            os.kill(pid, signal.SIGKILL)
        for stream in streams:
            stream.join(seconds(60))
    with serving(tmp_path, [engine], 2, keys=proxy.keys) as again:
        after = Scene(again, [engine])
        until(lambda: after.metric('warmroute_turns_total{outcome="interrupted"}') == 2, "both are counted")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_each_process_records_decisions_that_come_out_the_same(scene: Scene, tmp_path: Path) -> None:
    tables = [engine.toml("east") for engine in scene.engines]
    with ProxyProcess(tmp_path / "p", tables, extra=f'processes = {COUNT}\nrecord = "decisions"') as proxy:
        for turn in range(8):
            assert Scene(proxy, scene.engines).ask(text=f"recorded {turn % 3}").status_code == 200
    records = sorted((tmp_path / "p").glob("decisions.*"))
    assert [path.name for path in records] == [f"decisions.{number}" for number in range(COUNT)]
    verdicts = [verify(path) for path in records]
    assert sum(verdict.decisions for verdict in verdicts) == 8
    assert [verdict.differing for verdict in verdicts] == [0] * COUNT
