"""Two proxies of one region before the same engine, which name each other: each knows what the other has sent."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.ports import free_ports
from tests.subjects.processes import PLAIN, ProxyProcess, answer, chat, until
from tests.subjects.scripted import ScriptedEngine
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.regions.forward_claim import SHA256_OF_NOTHING, Forwards

from .test_admission import Gate
from .test_working_set import POOL, long_text, pool_of

pytestmark = pytest.mark.full


class Pair:
    """Two proxies, each with as many processes as it is told."""

    def __init__(self, first: ProxyProcess, second: ProxyProcess, gate: Gate) -> None:
        self.first = first
        self.second = second
        self.gate = gate
        self.sockets: list[socket.socket] = []

    def send(self, proxy: ProxyProcess, text: str) -> socket.socket:
        """A request whose answer is not read yet."""
        sock = proxy.send(chat(text))
        self.sockets.append(sock)
        return sock

    def admission(self, proxy: ProxyProcess) -> dict[str, Any]:
        with proxy.admin() as admin:
            return dict(admin.get("/admin/admission").json())

    def worker(self, proxy: ProxyProcess) -> dict[str, Any]:
        with proxy.admin() as admin:
            (found,) = admin.get("/admin/workers").json()["workers"].values()
        return dict(found)

    def running(self, proxy: ProxyProcess) -> int:
        return int(self.worker(proxy)["running"])


@contextmanager
def pair(folder: Path, processes: int = 1) -> Iterator[Pair]:
    gate = Gate()
    engine = ScriptedEngine("s0", gate)
    engine.loads = pool_of(POOL)
    ports = free_ports(2)
    table = f"{engine.toml()}\nmax_running = 100"
    made: list[ProxyProcess] = []
    try:
        for at, other in ((0, 1), (1, 0)):
            extra = f'other_proxies = ["http://127.0.0.1:{ports[other]}"]\nprocesses = {processes}'
            keys = made[0].keys if made else None
            limits = "queue_timeout_s = 3600"
            proxy = ProxyProcess(folder / f"p{at}", [table], keys=keys, extra=extra, limits=limits)
            made.append(proxy.start(ports[at]))
        found = Pair(made[0], made[1], gate)
        yield found
        for sock in found.sockets:
            sock.close()
    finally:
        gate.open_for_all()
        for proxy in made:
            proxy.stop()
        engine.stop()


def test_each_knows_what_the_other_has_sent(tmp_path: Path) -> None:
    with pair(tmp_path) as it:
        until(lambda: it.worker(it.second).get("token_limit") == POOL, "the pool is known")
        asked = it.send(it.first, long_text("first"))
        until(lambda: it.running(it.second) == 1, "the other proxy counts it")
        waits = it.send(it.second, long_text("second"))
        until(lambda: it.admission(it.second)["queue"]["for_memory"] == 1, "it waits for memory that the first one has")
        it.gate.open_for_all()
        assert [answer(sock)[0] for sock in (asked, waits)] == [200, 200]
        until(lambda: it.running(it.first) == it.running(it.second) == 0, "both know that they have ended")


def test_a_new_session_waits_at_one_while_a_running_one_waits_at_the_other(tmp_path: Path) -> None:
    with pair(tmp_path) as it:
        until(lambda: it.worker(it.second).get("token_limit") == POOL, "the pool is known")
        it.send(it.first, long_text("first"))
        until(lambda: it.running(it.second) == 1, "the other proxy counts it")
        it.sockets.append(it.first.send(chat(long_text("running"), turns=2)))

        def queue(proxy: ProxyProcess) -> dict[str, Any]:
            return dict(it.admission(proxy)["queue"])

        until(lambda: queue(it.first)["for_memory"] == 1, "a turn of a running session waits at the first")
        until(lambda: queue(it.second)["waits_elsewhere"] == 1, "the second knows it")
        new = it.send(it.second, long_text("new", 9))
        until(lambda: queue(it.second)["to_begin"] == 1, "a new session waits at the second, though it would fit")
        it.gate.open_for_all()
        assert answer(new)[0] == 200
        until(lambda: queue(it.second)["waits_elsewhere"] == 0, "and knows when it waits no more")


def test_the_end_of_a_session_is_known_whichever_proxy_hears_it(tmp_path: Path) -> None:
    with pair(tmp_path) as it:
        until(lambda: it.worker(it.second).get("token_limit") == POOL, "the pool is known")
        it.gate.open_for_all()
        key = {"x-session-affinity": "ticket-4711"}
        it.sockets.append(it.first.send(chat(long_text("first")), headers=key))
        assert answer(it.sockets[0])[0] == 200

        def protected(proxy: ProxyProcess) -> int:
            (books,) = it.admission(proxy)["working_set"].values()
            return int(books["protected_tokens"])

        until(lambda: protected(it.second) > 0, "the other proxy knows whose KV is there")
        with it.second.client() as client:
            said = client.post("/v1/sessions/expect", headers={**key, "x-warmroute-expect": "end"})
        assert said.status_code == 204
        until(lambda: protected(it.first) == protected(it.second) == 0, "both know that it is over", 10.0)


def test_a_conversation_without_a_key_is_one_at_both(tmp_path: Path) -> None:
    """The next turn is asked again until the other proxy knows of the one before, which takes milliseconds."""
    with pair(tmp_path) as it:
        it.gate.open_for_all()

        def session(proxy: ProxyProcess, turns: int) -> str:
            with proxy.client() as client:
                found = client.post("/v1/chat/completions", json=chat("unnamed", turns=turns)).json()
            return str(found["usage"]["warmroute"]["session"])

        first = session(it.first, 1)
        until(lambda: session(it.second, 2) == first, "the other proxy continues it")
        until(lambda: session(it.first, 3) == first, "and so does the first one")


def test_a_row_is_voided_by_whichever_proxy_is_asked(tmp_path: Path) -> None:
    """As where a balancer stands before both: the region that lost an answer knows not which of them has the row."""
    with pair(tmp_path) as it:
        it.gate.open_for_all()
        with it.first.client() as client:
            receipt = client.post("/v1/chat/completions", json=chat("lost")).headers["x-warmroute-receipt"]
        assert it.first.row(receipt)["price_nanousd"] > 0
        with it.second.client() as client:
            found = [client.get(path).json() for path in ("/v1/usage?by=model", "/v1/usage", "/v1/usage/receipts")]
        assert [each["complete"] for each in found] == [False] * 3, "without a database the row is not seen from here"
        with it.second.client() as client:
            found_there = client.get(f"/v1/usage/receipts/{receipt}")
            assert (found_there.status_code, found_there.json()["id"]) == (200, receipt), "the other one is asked"
            assert client.get("/v1/usage/receipts/wr-000000000000000000000000").status_code == 404
        path = f"/v1/usage/receipts/{receipt}/void"
        secrets = Secrets((it.first.folder.parent / "secret").read_bytes())
        forwards = Forwards(secrets, "west", time.time, token_hex)

        def voided(path: str) -> int:
            token = forwards.sign("first", "first", path, "east", SHA256_OF_NOTHING, 10.0)
            with httpx.Client(base_url=it.second.url, verify=PLAIN, timeout=seconds(10)) as client:
                return client.post(path, headers={"x-warmroute-forward": token}).status_code

        assert voided(path) == 200
        assert it.first.row(f"{receipt}-void")["price_nanousd"] == -it.first.row(receipt)["price_nanousd"]
        assert voided(path) == 200, "it is free by now"
        assert voided("/v1/usage/receipts/wr-000000000000000000000000/void") == 404
        it.first.kill()
        assert voided(path) == 503, "who may have the row is away: the order is not given up"


def test_a_proxy_that_dies_is_no_load_for_ever_and_is_known_again(tmp_path: Path) -> None:
    with pair(tmp_path) as it:
        asked = [it.send(it.first, "first")]
        until(lambda: it.running(it.second) == 1, "the other proxy counts it")
        port = int(it.first.url.rpartition(":")[2])
        it.first.kill()
        until(lambda: it.running(it.second) == 0, "its request is forgotten", 60.0)
        it.first.start(port)
        asked.append(it.send(it.first, "again"))
        until(lambda: it.running(it.second) == 1, "the other proxy counts it")
        it.gate.open_for_all()
        assert answer(asked[1])[0] == 200


def test_every_process_knows_what_the_other_proxy_has_sent_and_tokens_in_flight_are_its_own(tmp_path: Path) -> None:
    """Proxies are scaled by them: an idle one that showed the load of the others would ask for one more, for ever."""
    own, of_all = "warmroute_tokens_in_flight", "warmroute_worker_resident_tokens"
    with pair(tmp_path, processes=2) as it:
        asked = [it.send(it.first, f"number {number}") for number in range(6)]  # the system chooses the process of each
        for _ in range(6):  # and of each look
            until(lambda: it.running(it.second) == 6, "all are counted once")
        until(lambda: 0 < it.first.metric(own) == it.first.metric(of_all), "processes are summed")
        assert it.second.metric(of_all) > 0
        assert it.second.metric(own) == 0
        it.gate.open_for_all()
        assert {answer(sock)[0] for sock in asked} == {200}
        until(lambda: it.running(it.second) == it.first.metric(own) == 0, "all have ended")


def test_a_proxy_that_counts_alone_says_so(tmp_path: Path) -> None:
    gate = Gate()
    gate.open_for_all()
    extra = f'other_proxies = ["http://127.0.0.1:{free_ports(1)[0]}"]\ncounts_alone = true'
    with (
        ScriptedEngine("s0", gate) as engine,
        ProxyProcess(tmp_path, [engine.toml()], extra=extra, second="requests_per_minute = 9") as proxy,
    ):
        with proxy.client() as client:
            assert client.get("/ready").json()["counts_alone"] is True
        receipts = []
        for tenant in (0, 1):
            with proxy.client(tenant) as client:
                receipts.append(client.post("/v1/chat/completions", json=chat("hello")).json()["usage"]["warmroute"])
        assert [receipt.get("counts_alone") for receipt in receipts] == [None, True]
