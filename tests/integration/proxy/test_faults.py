"""Engines that die, clients that leave, a proxy that is killed: nobody is left hanging, nothing is billed twice."""

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, events, until
from warmroute.contract import receipt as contract_receipt

pytestmark = pytest.mark.full

LONG: dict[str, Any] = {
    "metadata": {"script": json.dumps({"output_tokens": 400})}
}  # at speed 1 a token lasts about 16 ms
ENDLESS: dict[str, Any] = {"metadata": {"script": json.dumps({"output_tokens": 20_000})}}
"""An answer that a client leaves before its end, however late it is."""


class Mortal(Fleet):
    def __init__(self, folder: Path, roles: dict[str, str], speed: float = 1.0, **of_proxy: Any) -> None:
        engines = [EngineProcess(folder, name, role, speed=speed) for name, role in roles.items()]
        super().__init__(folder, engines, **of_proxy)

    def kill(self, name: str) -> None:
        os.kill(self.engines[name].child.pid, signal.SIGKILL)

    def idle(self) -> bool:
        return self.running() == 0


PAIRS = {"p0": "prefill", "d0": "decode", "d1": "decode"}


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[Mortal]:
    with Mortal(tmp_path, PAIRS) as fleet:
        yield fleet


class Stream(threading.Thread):
    """A raw client of one stream: what it read, and how it ended."""

    def __init__(self, proxy: ProxyProcess, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
        super().__init__(daemon=True)
        self._proxy = proxy
        self._body = body
        self._path = path
        self.text = ""
        self.receipt = ""
        self.clean = False
        self.status = 0
        self.first = threading.Event()
        self.ended_s = 0.0
        self.start()

    def run(self) -> None:
        parts = urlsplit(self._proxy.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds(30))
        try:
            headers = {"authorization": f"Bearer {self._proxy.keys[0]}", "content-type": "application/json"}
            connection.request("POST", self._path, json.dumps(self._body), headers)
            answer = connection.getresponse()
            self.status = answer.status
            self.receipt = answer.headers.get("x-warmroute-receipt", "")
            while data := answer.read1(65536):
                self.text += data.decode()
                self.first.set()
            self.clean = True
        except (http.client.HTTPException, OSError):
            pass
        finally:
            connection.close()
            self.ended_s = time.monotonic()
            self.first.set()

    @property
    def completed(self) -> bool:
        return self.clean and self.text.endswith("data: [DONE]\n\n")

    @property
    def failed_clearly(self) -> bool:
        """An error status, or an error event as the last thing before a connection that does not end well."""
        if self.status >= 500:
            return "error" in json.loads(self.text)
        return (
            bool(events(self.text))
            and "error" in events(self.text)[-1]
            and "[DONE]" not in self.text
            and not self.clean
        )


def test_a_decode_engine_dies_under_ten_streams(pairs: Mortal) -> None:
    streams = [Stream(pairs.proxy, chat(f"stream {n}", stream=True, **LONG)) for n in range(10)]
    for stream in streams:
        assert stream.first.wait(seconds(20))
    busy = until(lambda: [name for name in ("d0", "d1") if pairs.engines[name].running()], "a decode engine works")
    pairs.kill(busy[0])
    killed_s = time.monotonic()
    for stream in streams:
        stream.join(seconds(30))
    failed = [stream for stream in streams if not stream.completed]
    assert failed
    assert all(stream.failed_clearly for stream in failed)
    assert all(stream.ended_s - killed_s < seconds(15) for stream in failed)
    until(pairs.idle, "no engine works for anybody")

    rows = {row["id"]: row for row in pairs.proxy.rows(expected=10)}
    assert len(rows) == 10
    for stream in streams:
        row = rows[stream.receipt]
        assert row["outcome"] == ("completed" if stream.completed else "engine_error")
        assert (row["price_nanousd"] == 0) == (not stream.completed)
        assert contract_receipt.check(json.loads(row["usage"])) == []
    again = Stream(pairs.proxy, chat("after", stream=True, max_tokens=3))
    again.join(seconds(20))
    assert again.completed


def test_a_prefill_engine_dies_while_it_computes(tmp_path: Path) -> None:
    with Mortal(tmp_path, {**PAIRS, "a0": "aggregated"}, speed=0.2) as fleet:
        with ThreadPoolExecutor(6) as pool, fleet.proxy.client() as client:

            def ask(number: int) -> httpx.Response:
                return client.post("/v1/chat/completions", json=chat(f"{number} " * 9000, max_tokens=2))

            answers = [pool.submit(ask, number) for number in range(6)]
            until(lambda: fleet.engines["p0"].running() > 0, "prefill works")
            fleet.kill("p0")
            results = [answer.result() for answer in answers]
        assert {answer.status_code for answer in results} <= {200, 502, 503}
        assert any(answer.status_code == 200 for answer in results)
        assert all(
            contract_receipt.check(answer.json()["usage"]) == [] for answer in results if answer.status_code == 200
        )
        until(fleet.idle, "no decode engine waits for the dead prefill")
        rows = fleet.proxy.rows(expected=6)
        retried = [row for row in rows if len(json.loads(row["rids"])) > 1]
        assert retried
        assert len(rows) == 6


@pytest.mark.real_deadlines("inference_request")
@pytest.mark.parametrize("moment", ["before the head", "mid-stream", "whole answer"])
def test_a_client_leaves(pairs: Mortal, moment: str) -> None:
    text = "a long prompt " * 12_000 if moment == "before the head" else "short"
    parts = urlsplit(pairs.proxy.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds(30))
    headers = {"authorization": f"Bearer {pairs.proxy.keys[0]}", "content-type": "application/json"}
    body = chat(text, stream=moment != "whole answer", **ENDLESS)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    if moment == "mid-stream":
        assert connection.getresponse().read1(100)
    else:
        until(
            lambda: pairs.engines["p0"].running() + pairs.engines["d0"].running() + pairs.engines["d1"].running(),
            "it runs",
        )
    connection.sock and connection.sock.close()
    connection.close()
    until(pairs.idle, "both legs stop")
    row = pairs.proxy.rows(expected=1)[0]
    assert (row["state"], row["outcome"], row["status"]) == ("settled", "client_left", 0)
    usage = json.loads(row["usage"])
    assert contract_receipt.check(usage) == []
    if moment == "mid-stream":
        assert usage["prompt_tokens"] > 0
        assert usage["completion_tokens"] > 0


def test_the_proxy_is_killed_and_every_answer_that_ended_has_its_row(pairs: Mortal) -> None:
    streams = [Stream(pairs.proxy, chat(f"short {n}", stream=True, max_tokens=5)) for n in range(8)]
    long = [Stream(pairs.proxy, chat(f"long {n}", stream=True, **ENDLESS)) for n in range(4)]
    for stream in (*streams, *long):
        assert stream.first.wait(seconds(20))
    until(lambda: sum(stream.completed for stream in streams) >= 4, "some answers have ended")
    pairs.proxy.kill()
    for stream in (*streams, *long):
        stream.join(seconds(20))
    until(pairs.idle, "the engines notice")
    pairs.proxy.start()
    rows = {row["id"]: row for row in pairs.proxy.rows(expected=12)}
    assert len(rows) == 12
    for stream in (*streams, *long):
        row = rows[stream.receipt]
        if stream.completed:
            assert (row["state"], row["outcome"]) == ("settled", "completed")
        else:
            assert not stream.clean
        if row["state"] == "interrupted":
            assert row["price_nanousd"] == 0
    assert all(rows[stream.receipt]["state"] == "interrupted" for stream in long)
    interrupted = sum(row["state"] == "interrupted" for row in rows.values())
    assert f'warmroute_turns_total{{outcome="interrupted"}} {interrupted}\n' in pairs.proxy.metrics()


def test_a_proxy_that_is_told_to_stop_lets_streams_end(pairs: Mortal) -> None:
    stream = Stream(pairs.proxy, chat("goodbye", stream=True, max_tokens=60))
    assert stream.first.wait(seconds(20))
    assert pairs.proxy.child is not None
    os.kill(pairs.proxy.child.pid, signal.SIGTERM)
    until(lambda: _refuses(pairs.proxy), "new requests are not taken")
    stream.join(seconds(20))
    assert stream.completed
    until(lambda: pairs.proxy.child and not pairs.proxy.child.running(), "the proxy ends")


def _refuses(proxy: ProxyProcess) -> bool:
    try:
        return not proxy.is_ready()
    except httpx.TransportError:
        return True
