"""Attacks on the credit for tokens that were cached at home: nobody pays less than with all of it cached."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.proxy.harness import EngineProcess, ProxyProcess, until
from tests.machine import seconds
from warmroute.contract import receipt as contract_receipt
from warmroute_cli.processes import stop_all

LONG: dict[str, Any] = {"metadata": {"script": json.dumps({"output_tokens": 20_000})}, "max_tokens": 20_000}
WORDS = 6000  # of a prompt
COPIES = 6


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    folder = tmp_path_factory.mktemp("credit-engines")
    started = [EngineProcess(folder, name, "aggregated", speed=1.0) for name in ("a0", "a1", "a2")]
    try:
        yield [engine.listening() for engine in started]
    finally:
        stop_all([engine.child for engine in started], seconds(5.0))


@pytest.fixture(scope="module")
def proxy(engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    tables = [f"{engine.toml('east')}\nmax_running = 2" for engine in engines]
    started = ProxyProcess(tmp_path_factory.mktemp("credits") / "p", [*tables, "[prices]\ncredit_moved = true"])
    try:
        yield started.start()
    finally:
        started.stop()


def _turns(name: str, count: int) -> list[dict[str, Any]]:
    text = " ".join(f"{name}{number % 97}" for number in range(WORDS))
    found: list[dict[str, Any]] = [{"role": "user", "content": text}]
    for number in range(count - 1):
        found += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"Go on, {number}."}]
    return found


class _Busy:
    """Streams that take all slots of an engine, until they are closed."""

    def __init__(self, proxy: ProxyProcess, session: str, prompt: list[dict[str, Any]], count: int) -> None:
        self._end = threading.Event()
        self.workers: list[str] = []
        self._threads = [threading.Thread(target=self._stream, args=(proxy, session, prompt)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _stream(self, proxy: ProxyProcess, session: str, prompt: list[dict[str, Any]]) -> None:
        body = {"model": "kimi-k2.5", "messages": prompt, "stream": True, **LONG}
        headers = {"x-session-affinity": session}
        with proxy.client() as client, client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as out:
            lines = out.iter_lines()
            next(line for line in lines if '"content":"' in line.replace('"content":""', ""))
            self.workers.append(out.headers["x-warmroute-receipt"])
            self._end.wait(seconds(60))

    def close(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def _ask(proxy: ProxyProcess, session: str | None, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    headers = {"x-session-affinity": session} if session else {}
    body = {"model": "kimi-k2.5", "messages": messages, "max_tokens": 1, **more}
    with proxy.client() as client:
        answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    assert contract_receipt.check(usage) == []
    return usage


def _credit(usage: dict[str, Any]) -> int:
    found: int = usage["warmroute"].get("credit", {}).get("nanousd", 0)
    return found


def _all_cached(usage: dict[str, Any]) -> int:
    """The price of a turn whose whole prompt was cached."""
    rates = {name: round(float(rate) * 1e6) for name, rate in usage["warmroute"]["rates_usd_per_mtok"].items()}
    cached = usage["prompt_tokens"] * rates["cached"]
    return round((cached + usage["completion_tokens"] * rates["output"]) / 1000)


def test_copies_that_are_sent_at_once_gain_nothing(proxy: ProxyProcess, engines: list[EngineProcess]) -> None:
    first = _ask(proxy, "thief", _turns("thief", 1))
    busy = _Busy(proxy, "other", _turns("thief", 1), 2)
    try:
        until(lambda: len(busy.workers) == 2, "both streams have begun")
        with ThreadPoolExecutor(COPIES) as pool:
            asked = [pool.submit(_ask, proxy, "thief", _turns("thief", 2)) for _ in range(COPIES)]
            usages = [each.result() for each in asked]
    finally:
        busy.close()
    until(lambda: not any(engine.running() for engine in engines), "the engines stop")
    credits = [_credit(usage) for usage in usages]
    assert sum(1 for credit in credits if credit) <= 1
    for usage in usages:
        assert usage["warmroute"]["price_nanousd"] - _credit(usage) >= _all_cached(usage)
        assert usage["warmroute"].get("credit", {}).get("tokens", 0) <= first["prompt_tokens"]


def test_a_moved_turn_is_credited_once_and_sums_agree(proxy: ProxyProcess, engines: list[EngineProcess]) -> None:
    _ask(proxy, "moved", _turns("moved", 1))
    busy = _Busy(proxy, "moved-too", _turns("moved", 1), 2)
    try:
        until(lambda: len(busy.workers) == 2, "both streams have begun")
        usage = _ask(proxy, "moved", _turns("moved", 2))
    finally:
        busy.close()
    print(usage)
    until(lambda: not any(engine.running() for engine in engines), "the engines stop")
    assert _credit(usage) > 0
