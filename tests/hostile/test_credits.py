"""Attacks on the credit for tokens that were cached at home: nobody pays less than with all of it cached."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, until
from tests.subjects.stopped import Several
from warmroute.contract import receipt as contract_receipt

LONG: dict[str, Any] = {"metadata": {"script": json.dumps({"output_tokens": 20_000})}, "max_tokens": 20_000}
WORDS = 6000  # of a prompt
COPIES = 6


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    folder = tmp_path_factory.mktemp("credit-engines")
    with Several([EngineProcess(folder, name, "aggregated", speed=1.0) for name in ("a0", "a1", "a2")]) as started:
        yield [engine.listening() for engine in started]


@pytest.fixture(scope="module")
def proxy(engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    tables = [engine.toml("east") for engine in engines]
    with ProxyProcess(tmp_path_factory.mktemp("credits") / "p", [*tables, "[prices]\ncredit_moved = true"]) as started:
        yield started


def _turns(name: str, count: int, words: int = WORDS) -> list[dict[str, Any]]:
    text = " ".join(f"{name}{number % 97}" for number in range(words))
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


def _drain(proxy: ProxyProcess, method: str, engines: list[str]) -> None:
    with proxy.admin() as admin:
        for engine in engines:
            admin.request(method, f"/admin/engines/{engine}/drain").raise_for_status()


def _credit(usage: dict[str, Any]) -> int:
    found: int = usage["warmroute"].get("credit", {}).get("nanousd", 0)
    return found


def _all_cached(usage: dict[str, Any]) -> int:
    """The price of a turn whose whole prompt was cached."""
    rates = {name: round(float(rate) * 1e6) for name, rate in usage["warmroute"]["rates_usd_per_mtok"].items()}
    cached = usage["prompt_tokens"] * rates["cached"]
    output = usage["completion_tokens"] * rates["output"]
    price: int = round((cached + output) / 1000)
    return price


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
    found = [_credit(usage) for usage in usages]
    assert sum(1 for credit in found if credit) <= 1
    for usage in usages:
        assert usage["warmroute"]["price_nanousd"] - _credit(usage) >= _all_cached(usage)
        assert usage["warmroute"].get("credit", {}).get("tokens", 0) <= first["prompt_tokens"]


def _usage(proxy: ProxyProcess) -> dict[str, Any]:
    with proxy.client() as client:
        found: dict[str, Any] = client.get("/v1/usage").json()
    return found


def test_a_turn_that_leaves_an_idle_queue_is_credited_once_and_sums_agree(
    proxy: ProxyProcess, engines: list[EngineProcess]
) -> None:
    """Answers at home are slow, by the streams there, so that the turn itself is faster elsewhere."""
    more = {"max_tokens": 1024, "metadata": {"script": json.dumps({"output_tokens": 4})}}
    first = _ask(proxy, "moved", _turns("moved", 1, 600))
    before = _usage(proxy)
    home = first["warmroute"]["workers"][0]["id"]
    others = [name for name in ("a0", "a1", "a2") if name != home]
    _drain(proxy, "POST", others)  # the streams leave no copy of the prompt there
    busy = _Busy(proxy, "moved", _turns("moved", 1, 600), 8)
    try:
        until(lambda: len(busy.workers) == 8, "all streams have begun")
        _drain(proxy, "DELETE", others)
        usage = _ask(proxy, "moved", _turns("moved", 2, 600), **more)
        again = _ask(proxy, "moved", _turns("moved", 2, 600), **more)
    finally:
        busy.close()
    until(lambda: not any(engine.running() for engine in engines), "the engines stop")
    assert usage["warmroute"]["workers"] != first["warmroute"]["workers"]
    credit = usage["warmroute"]["credit"]
    assert credit["tokens"] == min(usage["warmroute"]["loss"]["moved"], first["prompt_tokens"])
    assert usage["warmroute"]["price_nanousd"] - credit["nanousd"] >= _all_cached(usage)
    assert "credit" not in again["warmroute"]
    id_ = f"{usage['warmroute']['id']}-credit"
    row = until(lambda: next((row for row in proxy.rows() if row["id"] == id_), None), "the row of the credit")
    assert (row["outcome"], row["price_nanousd"], row["prompt_tokens"]) == ("credited", -credit["nanousd"], 0)
    after = _usage(proxy)
    assert after["turns"] == before["turns"] + 10
    until(lambda: _summed(proxy) == (after["price_nanousd"], after["turns"]), "rows add up to what the proxy says")


def _summed(proxy: ProxyProcess) -> tuple[int, int]:
    """The price of all rows, and how many of them are turns."""
    rows = proxy.rows()
    return sum(row["price_nanousd"] for row in rows), sum(row["outcome"] != "credited" for row in rows)
