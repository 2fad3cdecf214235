"""Two tenants, one hostile in every way at once: `python -m tests.hostile.two_tenants --minutes 10`, by hand.

The innocent one asks by chat and by messages, whole and streamed, one request after the other: first alone, then while
the hostile one attacks. Printed are its latencies, and what both were charged. Where there are two cores the proxy has
one of its own, and the hostile tenant, in a process of its own, gives way to the innocent one on the other.
"""

import argparse
import itertools
import json
import multiprocessing
import multiprocessing.synchronize
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.hostile.conftest import HOSTILE, INNOCENT
from tests.hostile.reading import MESSAGES, RESPONSES
from tests.hostile.worst_bodies import PLACES, SIZE, body, fillings
from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess
from warmroute_cli.processes import stop_all

COUNTS = {MESSAGES: "/v1/messages/count_tokens", RESPONSES: "/v1/responses/input_tokens"}
THREADS = 6


class Innocent:
    """One agent, whose conversation goes on."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self._client = proxy.client(INNOCENT)
        self._turn = 0
        self._said: list[dict[str, str]] = []
        self.failed: Counter[int] = Counter()

    def measured_s(self, seconds: float) -> list[float]:
        found, until_s = [], time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            self._ask()
            found.append(time.monotonic() - began_s)
            time.sleep(0.02)
        return found

    def _ask(self) -> None:
        self._turn += 1
        if self._turn % 40 == 1:
            self._said = [{"role": "user", "content": f"begin {self._turn} " + "a careful plan. " * 3000}]
        asked: dict[str, Any] = {"model": "kimi-k2.5", "messages": self._said, "max_tokens": 9}
        path = MESSAGES if self._turn % 2 else "/v1/chat/completions"
        answer = self._client.post(path, json=asked | {"stream": self._turn % 3 == 0})
        if answer.status_code != 200 or "error" in answer.text[:200]:
            self.failed[answer.status_code] += 1
        self._said = [
            *self._said,
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": f"go on {self._turn}"},
        ]


class Hostile:
    """All attacks, drawn at random, by several threads."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self._proxy = proxy
        self._stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self._attacks: list[Callable[[random.Random], None]] = [
            self._dense, self._large, self._counts, self._keys, self._chunks, self._leaves, self._heads,
        ]  # fmt: skip
        self._bodies = [
            (place.path, body(place, filling, most))
            for place in PLACES[::4]
            for filling in fillings(place)[:2]
            for most in (SIZE, 8000)
        ]
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        draw = random.Random(number)
        while not self._stop.is_set():
            attack = draw.choice(self._attacks)
            try:
                attack(draw)
            except (httpx.HTTPError, OSError) as error:
                self.answers[f"{attack.__name__} {type(error).__name__}"] += 1

    def _post(self, name: str, path: str, content: bytes, **headers: str) -> None:
        url = f"{self._proxy.url}{path}"
        sent = {"authorization": f"Bearer {self._proxy.keys[HOSTILE]}", "content-type": "application/json", **headers}
        answer = httpx.post(url, content=content, headers=sent, verify=PLAIN, timeout=120)
        self.answers[f"{name} {answer.status_code}"] += 1

    def _dense(self, draw: random.Random) -> None:
        path, content = draw.choice(self._bodies)
        self._post("dense", path.replace("/m:", "/kimi-k2.5:"), content.replace(b'"model":"m"', b'"model":"kimi-k2.5"'))

    def _large(self, draw: random.Random) -> None:
        messages = ",".join(f'{{"role":"user","content":"{draw.random()} {n}"}}' for n in range(30_000))
        content = f'{{"model":"kimi-k2.5","messages":[{messages}],"x":"{"x" * 20_000_000}"}}'.encode()
        self._post("large", COUNTS[MESSAGES], content)

    def _counts(self, draw: random.Random) -> None:
        for _ in range(20):
            content = {"model": "kimi-k2.5", "input": f"{draw.random()} " + "count me " * 50_000}
            self._post("count", COUNTS[RESPONSES], json.dumps(content).encode())

    def _keys(self, draw: random.Random) -> None:
        said = [{"role": "user", "content": "keyed"}]
        for _ in range(50):
            content = json.dumps({"model": "kimi-k2.5", "messages": said}).encode()
            self._post("key", "/v1/chat/completions", content, **{"idempotency-key": f"{draw.random()}"})

    def _raw(self, data: bytes, *, waits: bool = True) -> None:
        url = httpx.URL(self._proxy.url)
        with socket.create_connection((url.host, url.port or 80), timeout=30) as sock:
            head = (
                f"POST {COUNTS[MESSAGES]} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._proxy.keys[HOSTILE]}\r\n"
            )
            sock.sendall(head.encode() + data)
            if waits:
                sock.recv(4096)

    def _chunks(self, draw: random.Random) -> None:
        self._raw(b"transfer-encoding: chunked\r\n\r\n" + b"1;a=b\r\nx\r\n" * draw.randrange(50_000, 200_000))

    def _leaves(self, draw: random.Random) -> None:
        content = b'{"model":"kimi-k2.5","messages":[%b]}' % b",".join([b"{}"] * draw.randrange(10_000, 3_000_000))
        self._raw(b"content-length: %d\r\n\r\n%b" % (len(content), content), waits=False)

    def _heads(self, draw: random.Random) -> None:
        self._raw(b"".join(b"a%d: %b\r\n" % (n, b"b" * draw.randrange(600)) for n in range(90)) + b"\r\n")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.two_tenants", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of attacks (default: 10)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        engine = EngineProcess(Path(folder), "east-e0", "aggregated", speed=200.0).listening()
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[:1])
        proxy = ProxyProcess(Path(folder) / "p", [engine.toml("east")], fresh=True).start()
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[1:])
        try:
            _measure(proxy, options.minutes)
        finally:
            proxy.stop()
            stop_all([engine.child], 5.0)


def _attack(
    proxy: ProxyProcess, stops: "multiprocessing.synchronize.Event", answers: "multiprocessing.Queue[Any]"
) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # nice 19 still has its 3 ms where another wakes up
    hostile = Hostile(proxy)
    hostile.start()
    stops.wait()
    hostile.stop()
    answers.put(hostile.answers)


def lateness(proxy: ProxyProcess) -> dict[str, int]:
    """How often the event loop was late, by the upper bound of how late it was."""
    found: Counter[str] = Counter()
    with proxy.admin() as admin:
        for line in admin.get("/metrics").text.splitlines():
            if line.startswith("warmroute_loop_lag_seconds_bucket"):
                found[line.partition('le="')[2].partition('"')[0]] += int(float(line.rpartition(" ")[2]))
    bounds = list(found)
    return {
        bound: found[bound] - found[before]
        for before, bound in itertools.pairwise(bounds)
        if found[bound] > found[before]
    }


def _measure(proxy: ProxyProcess, minutes: float) -> None:
    innocent, context = Innocent(proxy), multiprocessing.get_context("fork")
    innocent.measured_s(3.0)
    alone = innocent.measured_s(30.0)
    stops, answers = context.Event(), context.Queue()
    hostile = context.Process(target=_attack, args=(proxy, stops, answers))
    hostile.start()
    attacked = innocent.measured_s(60 * minutes)
    stops.set()
    said = answers.get()
    hostile.join()
    for name, found in (("alone", alone), ("attacked", attacked)):
        p50, p99 = (1000 * statistics.quantiles(found, n=100)[at] for at in (49, 98))
        print(
            f"{name:9} {len(found):6} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {1000 * max(found):.0f} ms"
        )
    print("the event loop was late, by seconds:", lateness(proxy))
    print("failed of the innocent tenant's:", dict(innocent.failed))
    print("the hostile tenant's:", dict(sorted(said.items())))
    time.sleep(2.0)
    rows = proxy.rows()
    charged: Counter[tuple[str, str]] = Counter()
    for row in rows:
        charged[row["tenant"], f"{row['outcome']} {'charged' if row['price_nanousd'] else 'charged nothing'}"] += 1
    print("rows:", dict(charged))


if __name__ == "__main__":
    main()
