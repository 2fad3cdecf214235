"""Draining an engine: by an operator's word, by the command, by the engine's own."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.fleet import Fleet
from tests.subjects.ports import free_port
from tests.subjects.processes import EngineProcess, chat, until
from warmroute_cli.main import main
from warmroute_cli.processes import stop_all
from warmroute_proxy.server.engines import drain_orders

pytestmark = pytest.mark.full

LONG = {"stream": True, "max_tokens": 400, "ignore_eos": True}  # some 4 s


class Two(Fleet):
    """Two aggregated engines behind a proxy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            [EngineProcess(folder, f"e{n}", "aggregated", "--port", str(free_port()), speed=2.0) for n in range(2)],
        )

    def engine(self, engine_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.get(f"/admin/engines/{engine_id}").raise_for_status().json()
        return found

    def served_by(self, text: str, **fields: Any) -> str:
        body = chat(text, max_tokens=4, **fields)
        answer = self.client.post("/v1/chat/completions", json=body).raise_for_status().json()
        return str(answer["usage"]["warmroute"]["workers"][0]["id"])

    def other(self, engine_id: str) -> str:
        return next(name for name in self.engines if name != engine_id)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with Two(tmp_path_factory.mktemp("drain")) as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_drains(fleet: Two) -> Iterator[None]:
    yield
    for name, engine in fleet.engines.items():
        fleet.admin.delete(f"/admin/engines/{name}/drain").raise_for_status()
        httpx.post(f"{engine.url}/engine/draining", json={"draining": False}).raise_for_status()
    until(lambda: {fleet.engine(name)["state"] for name in fleet.engines} == {"up"}, "both take work again")


def test_a_drained_engine_ends_its_stream_and_gets_nothing_new(fleet: Two) -> None:
    home = fleet.served_by("drained")
    kept = next(text for n in range(100) if fleet.served_by(text := f"kept {n}") == home)
    body = chat("drained", turns=2, **LONG)
    with fleet.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        lines = stream.iter_lines()
        first = next(line for line in lines if '"content"' in line)
        with fleet.engines[home].held():  # else the stream might have ended by then
            drained = fleet.admin.post(f"/admin/engines/{home}/drain").raise_for_status().json()
        assert (drained["state"], drained["running"], drained["drained"]) == ("draining", 1, False)
        assert list(drained["draining_since"]) == ["operator"]
        assert fleet.served_by("drained", turns=2) == fleet.other(home), "a warm home that drains loses its session"
        rest = list(lines)
    assert first
    assert rest[-2] == "data: [DONE]", "a running stream ends as if nothing was"
    until(lambda: fleet.engine(home)["drained"], "nothing runs there")
    assert all(fleet.served_by(f"new {n}") == fleet.other(home) for n in range(4))
    metrics = fleet.admin.get("/metrics").text
    assert f'warmroute_engine_draining{{engine="{home}"}} 1' in metrics
    assert fleet.admin.get("/admin/workers").json()["workers"][home]["health"] == "draining"

    assert fleet.admin.delete(f"/admin/engines/{home}/drain").json()["state"] == "up"
    assert fleet.served_by(kept) == home, "its cache is still known"


def test_an_engine_that_says_503_while_it_serves_is_draining_not_broken(fleet: Two) -> None:
    home = fleet.served_by("announced")
    engine = fleet.engines[home]
    body = chat("announced", turns=2, **LONG)
    with fleet.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if '"content"' in line)
        httpx.post(f"{engine.url}/engine/draining", json={"draining": True}).raise_for_status()
        until(lambda: fleet.engine(home)["state"] == "draining", "the probe has seen it")
        assert list(fleet.engine(home)["draining_since"]) == ["engine"]
        assert fleet.served_by("announced", turns=2) == fleet.other(home)
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    assert fleet.admin.get("/admin/workers").json()["workers"][home]["failures_in_a_row"] == 0

    fleet.admin.delete(f"/admin/engines/{home}/drain").raise_for_status()
    assert fleet.engine(home)["state"] == "draining", "an operator does not overrule the engine"
    httpx.post(f"{engine.url}/engine/draining", json={"draining": False}).raise_for_status()
    until(lambda: fleet.engine(home)["state"] == "up", "it takes work again")


def test_the_last_engine_may_be_drained_but_not_silently(fleet: Two) -> None:
    assert "warning" not in fleet.admin.post("/admin/engines/e0/drain").json()
    assert "kimi-k2.5" in fleet.admin.post("/admin/engines/e1/drain").json()["warning"]
    answer = fleet.client.post("/v1/chat/completions", json=chat("nowhere"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")
    assert "no engine is available for kimi-k2.5 (draining engines: 2)" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"] == "1"
    ready = fleet.client.get("/ready")
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["all engines that are up drain"])
    fleet.admin.delete("/admin/engines/e1/drain").raise_for_status()
    assert fleet.client.get("/ready").status_code == 200


def test_an_unknown_engine_is_named_with_the_known_ones(fleet: Two) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = fleet.admin.request(method, "/admin/engines/e9/drain")
        assert answer.status_code == 404
        assert "e0, e1" in answer.json()["error"]["message"]


def test_without_the_admin_key_nothing_drains(fleet: Two) -> None:
    url = fleet.proxy.line["admin_url"]
    assert httpx.post(f"{url}/admin/engines/e0/drain").status_code == 401
    assert fleet.client.post("/admin/engines/e0/drain").status_code == 404, "clients have no such route"
    assert fleet.engine("e0")["state"] == "up"


def test_the_command_drains_waits_and_takes_back(
    fleet: Two, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMROUTE_ADMIN_KEY", fleet.proxy.admin_key)
    where = ["--config", str(fleet.proxy.config), "--admin-url", str(fleet.proxy.line["admin_url"])]
    assert main(["engines", "drain", "e0", "--wait", "20", *where]) == 0
    assert capsys.readouterr().out.endswith("drained\n")
    assert main(["ask", "/metrics", "--only", "warmroute_start_time_seconds", *where]) == 0
    assert "warmroute_start_time_seconds 1" in capsys.readouterr().out
    assert main(["ask", "admin/conditions", "--only", "no such line", *where]) == 1
    assert capsys.readouterr() == ("", "warmroute ask: no line of /admin/conditions has 'no such line'\n")
    assert main(["engines", "list", *where]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == ["draining", "up"]
    assert main(["engines", "undrain", "e0", *where]) == 0
    assert main(["engines", "drain", "e9", *where]) == 2
    assert "no engine 'e9'" in capsys.readouterr().err
    monkeypatch.setenv("WARMROUTE_ADMIN_KEY", "wrong")
    assert main(["engines", "list", *where]) == 2
    assert "admin key is missing or wrong" in capsys.readouterr().err


def test_an_order_outlives_the_engine_and_its_successor_is_cold(tmp_path: Path) -> None:
    with Two(tmp_path) as fleet:
        old = fleet.engines["e0"]
        kept = next(text for n in range(100) if fleet.served_by(text := f"kept {n}") == "e0")
        fleet.admin.post("/admin/engines/e0/drain").raise_for_status()
        until(lambda: fleet.engine("e0")["drained"], "nothing runs there")
        stop_all([old.child], seconds(5.0))
        until(lambda: fleet.engine("e0")["state"] == "down", "it is gone")
        (tmp_path / "again").mkdir()
        port = old.url.rsplit(":", 1)[1]
        new = EngineProcess(tmp_path / "again", "e0", "aggregated", "--port", port, speed=2.0).listening()
        fleet.engines["e0"] = new
        until(lambda: fleet.engine("e0")["state"] == "draining", "it is back, and the order holds")
        assert fleet.served_by(kept) == "e1"
        workers = fleet.admin.get("/admin/workers").json()["workers"]
        assert (workers["e0"]["proven"], workers["e1"]["proven"]) == (0, 1)

        before = fleet.engine("e0")["draining_since"]
        fleet.forget()
        fleet.proxy.stop()
        fleet.proxy.start()
        assert fleet.engine("e0")["draining_since"] == before, "it holds over the proxy's restart too"
        assert fleet.served_by(kept) == "e1"

        fleet.admin.delete("/admin/engines/e0/drain").raise_for_status()
        fleet.admin.post("/admin/engines/e1/drain").raise_for_status()
        usage = fleet.client.post("/v1/chat/completions", json=chat(kept, max_tokens=4)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert usage["warmroute"]["predicted_cached"] == 0, "what its predecessor had is not expected of it"


@pytest.mark.parametrize("text", [b"", b"[1]", b'{"e0":"x"}', b"\xff"])
def test_a_file_of_orders_that_cannot_be_read_drains_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / drain_orders.FILE).write_bytes(text)
    assert drain_orders.load(tmp_path) == {}


def test_orders_are_kept_whole_and_a_folder_that_takes_none_stops_nobody(tmp_path: Path) -> None:
    assert drain_orders.load(tmp_path) == {}
    for orders in ({"e0": 1.5, "ä/1": 2.0}, {}):
        drain_orders.save(tmp_path, orders)
        assert drain_orders.load(tmp_path) == orders
        assert [path.name for path in tmp_path.iterdir()] == [drain_orders.FILE]
    drain_orders.save(tmp_path / "nowhere", {"e0": 1.0})


def test_under_load_no_turn_is_lost_while_engines_take_turns_to_drain(fleet: Two) -> None:
    """What a rolling restart does to the fleet, without the restarts."""
    stop = threading.Event()
    seen: list[tuple[int, bool]] = []

    def turns(session: int) -> None:
        with fleet.proxy.client() as client:
            for turn in range(10_000):
                if stop.is_set():
                    return
                body = chat(f"load {session}", turns=1 + turn % 3, stream=True, max_tokens=6)
                answer = client.post("/v1/chat/completions", json=body)
                seen.append((answer.status_code, answer.text.endswith("data: [DONE]\n\n")))

    def drain(name: str) -> None:
        fleet.admin.post(f"/admin/engines/{name}/drain").raise_for_status()
        before = len(seen)
        until(lambda: len(seen) >= before + 12 and fleet.engine(name)["drained"], f"{name} is drained, turns go on")
        fleet.admin.delete(f"/admin/engines/{name}/drain").raise_for_status()

    with ThreadPoolExecutor(6) as pool:
        sessions = [pool.submit(turns, session) for session in range(6)]
        try:
            for name in ("e0", "e1", "e0"):
                drain(name)
        finally:
            stop.set()
        for session in sessions:
            session.result()
    assert set(seen) == {(200, True)}
