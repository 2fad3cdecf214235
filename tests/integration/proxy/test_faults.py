"""Engines that die, clients that leave, a proxy that is killed: nobody is left hanging, nothing is billed twice."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, events, until
from warmroute.contract import receipt as contract_receipt

pytestmark = pytest.mark.full

LONG: dict[str, Any] = {"metadata": {"script": json.dumps({"output_tokens": 400})}}
"""At speed 1 a token lasts about 16 ms."""

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
    """A raw client of one request: what it has read so far, and how it ended."""

    def __init__(
        self,
        proxy: ProxyProcess,
        body: dict[str, Any],
        path: str = "/v1/chat/completions",
        *,
        tenant: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(proxy.url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds(30))
        sent = {"authorization": f"Bearer {proxy.keys[tenant]}", "content-type": "application/json", **(headers or {})}
        self._asked = ("POST", path, json.dumps(body), sent)
        self.text = ""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.clean = False
        self.first = threading.Event()
        self.ended_s = 0.0
        self.start()

    def run(self) -> None:
        try:
            self._connection.request(*self._asked)
            answer = self._connection.getresponse()
            self.status = answer.status
            self.headers = {name.lower(): value for name, value in answer.getheaders()}
            while data := answer.read1(65536):
                self.text += data.decode()
                self.first.set()
            self.clean = True
        except (http.client.HTTPException, OSError, ValueError, AttributeError):
            pass
        finally:
            self._connection.close()
            self.ended_s = time.monotonic()
            self.first.set()

    def begun(self) -> Self:
        """Once its first byte is there."""
        assert self.first.wait(seconds(20))
        return self

    def done(self) -> Self:
        """Once its answer has ended."""
        self.join(seconds(30))
        assert not self.is_alive()
        return self

    def leave(self) -> None:
        """Break off, as a client that dies does; nothing where the answer has ended."""
        with contextlib.suppress(AttributeError, OSError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.done()

    @property
    def receipt(self) -> str:
        return self.headers["x-warmroute-receipt"]

    @property
    def error(self) -> str:
        return str(json.loads(self.text)["error"]["code"])

    @property
    def completed(self) -> bool:
        return self.status == 200 and self.clean and self.text.endswith("data: [DONE]\n\n")

    @property
    def failed_clearly(self) -> bool:
        """An error status, or an error event as the last thing before a connection that does not end well."""
        if self.status >= 500:
            return "error" in json.loads(self.text)
        found = events(self.text)
        return bool(found) and "error" in found[-1] and "[DONE]" not in self.text and not self.clean


def test_a_decode_engine_dies_under_ten_streams(pairs: Mortal) -> None:
    streams = [Stream(pairs.proxy, chat(f"stream {n}", stream=True, **LONG)) for n in range(10)]
    for stream in streams:
        stream.begun()
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
    assert Stream(pairs.proxy, chat("after", stream=True, max_tokens=3)).done().completed


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
        served = [answer.json() for answer in results if answer.status_code == 200]
        assert served
        assert all(contract_receipt.check(answer["usage"]) == [] for answer in served)
        until(fleet.idle, "no decode engine waits for the dead prefill")
        rows = fleet.proxy.rows(expected=6)
        assert any(len(json.loads(row["rids"])) > 1 for row in rows), "some were tried again"
        assert len(rows) == 6


@pytest.mark.real_deadlines("inference_request")
def test_a_client_leaves(pairs: Mortal) -> None:
    for number, moment in enumerate(("before the head", "mid-stream", "whole answer"), 1):
        text = "a long prompt " * 12_000 if moment == "before the head" else moment
        stream = Stream(pairs.proxy, chat(text, stream=moment != "whole answer", **ENDLESS))
        if moment == "mid-stream":
            stream.begun()
        else:
            until(pairs.running, "it runs")
        stream.leave()
        until(pairs.idle, "both legs stop")
        row = max(pairs.proxy.rows(expected=number), key=lambda row: float(row["opened_at"]))
        assert (row["state"], row["outcome"], row["status"]) == ("settled", "client_left", 0)
        usage = json.loads(row["usage"])
        assert contract_receipt.check(usage) == []
        assert moment != "mid-stream" or usage["prompt_tokens"] > 0 < usage["completion_tokens"]


def test_the_proxy_is_killed_and_every_answer_that_ended_has_its_row(pairs: Mortal) -> None:
    streams = [Stream(pairs.proxy, chat(f"short {n}", stream=True, max_tokens=5)) for n in range(8)]
    long = [Stream(pairs.proxy, chat(f"long {n}", stream=True, **ENDLESS)) for n in range(4)]
    for stream in (*streams, *long):
        stream.begun()
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
