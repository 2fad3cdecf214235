"""Two prefill engines before one decode, and the KV of one of them reaches nobody: turns go to the other."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.stopped import Several
from warmroute_proxy.core.load.hand_overs import HandOvers


@pytest.fixture
def nowhere() -> Iterator[int]:
    """A port at which nothing listens, and that nothing else gets."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[EngineProcess]]:
    roles = {"p1": "prefill", "p2": "prefill", "d1": "decode"}
    with Several([EngineProcess(tmp_path, name, role) for name, role in roles.items()]) as made:
        yield made


def proxy_of(folder: Path, engines: list[EngineProcess], bootstrap_host: str, port: int) -> ProxyProcess:
    """A proxy that takes p1's KV to be at another address than it is."""
    broken = "\n".join(engines[0].toml("east").split("\n")[:-2])
    tables = [f'{broken}\nbootstrap_host = "{bootstrap_host}"\nbootstrap_port = {port}']
    return ProxyProcess(folder / "p", [*tables, *(engine.toml("east") for engine in engines[1:])])


@pytest.mark.real_deadlines("attempt")  # decode tells at once; prefill waits for it
def test_a_prefill_that_fails_with_all_partners_is_taken_out_and_named(
    tmp_path: Path, engines: list[EngineProcess], nowhere: int
) -> None:
    """The proxy cannot ask the bootstrap server itself: it may be in a network of the engines."""
    with (
        proxy_of(tmp_path, engines, "localhost", nowhere) as proxy,
        proxy.client() as client,
        proxy.admin() as admin,
        ThreadPoolExecutor(6) as at_once,
    ):

        def begin(number: int) -> list[str]:
            prompt = [{"role": "user", "content": f"{number} says hello. " * 300}]
            body = chat(max_tokens=4) | {"messages": prompt}
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            return [worker["id"] for worker in answer["usage"]["warmroute"]["workers"]]

        assert list(at_once.map(begin, range(24))) == [["p2", "d1"]] * 24

        def raised() -> list[tuple[str, str]]:
            found = admin.get("/admin/conditions").json()["raised"]
            return [(row["subject"], row["detail"]) for row in found if row["condition"] == "pd_hand_overs_fail"]

        ((subject, detail),) = until(raised, "the condition is raised")
        assert subject == "p1"
        assert "KV of prefill p1 did not reach decode d1, which gets that of others" in detail


def test_a_prefill_whose_bootstrap_server_does_not_answer_gets_no_turns(
    tmp_path: Path, engines: list[EngineProcess], nowhere: int
) -> None:
    with proxy_of(tmp_path, engines, "127.0.0.1", nowhere) as proxy, proxy.client() as client:
        until(lambda: proxy.engine_states() == {"p1": "down", "p2": "up", "d1": "up"}, "p1 is down")
        for session in range(6):
            body = chat(f"session {session}", max_tokens=4)
            client.post("/v1/chat/completions", json=body).raise_for_status()
        assert "engine p1 is down (/ready answered 200, its bootstrap server does not answer" in proxy.written()


def test_the_engine_at_fault_is_the_one_that_fails_with_all_partners() -> None:
    pairs = HandOvers()
    assert pairs.failed("p1", "d1", 1.0) is None, "nothing else is known of either"
    pairs.served("p2", "d1", 2.0)
    assert pairs.failed("p1", "d1", 3.0) == "p1"
    assert pairs.failed("p2", "d2", 4.0) is None, "d2 is new: p2 may have broken since it handed over to d1"
    assert pairs.failed("p1", "d2", 5.0) is None, "both fail with all"
    pairs.served("p1", "d1", 6.0)  # it works again
    assert pairs.failed("p1", "d2", 7.0) == "d2"


@pytest.mark.parametrize("broken", ["p1", "d1"])
def test_an_engine_that_breaks_is_at_fault_although_it_worked_with_others_before(broken: str) -> None:
    """The second engine of its partner's role may be gone since then, and says nothing more of it."""
    pairs = HandOvers()
    for prefill, decode in product(("p1", "p2"), ("d1", "d2")):
        pairs.served(prefill, decode, 1.0)
    assert pairs.failed("p1", "d1", 3.0) is None, "each has worked with others"
    pairs.served("p1", "d2", 2.0)  # sent before the failure, so long answers of a broken prefill prove nothing
    pairs.served("p2", "d1", 2.0)
    assert pairs.failed("p1", "d1", 4.0) is None
    pairs.served(*(("p2", "d1") if broken == "p1" else ("p1", "d2")), 5.0)
    assert pairs.failed("p1", "d1", 6.0) == broken
    assert pairs.failed("p1", "d1", 7.0) == broken
