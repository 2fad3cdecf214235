"""What SGLang refuses or would not survive, seen through the proxy: full queues, broken schemas, several answers."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.proxy.test_engine_misbehaves import sound
from tests.integration.sglang.behind import Behind, conversation, toml, work_of
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, until
from tests.subjects.scripted import ScriptedEngine
from warmroute.contract import receipt as contract_receipt
from warmroute_backend.sglang import Server
from warmroute_backend.sglang.command import QUEUED_REQUESTS, RUNNING_REQUESTS

CANARY = "canary-2c91d7"
CHAT = "/v1/chat/completions"
STOPS_WITHIN_S = 6.0
"""SGLang looks every 4 s whether the client of an answer that has not begun is still there."""


@contextmanager
def full(server: Server) -> Iterator[None]:
    """Others keep all places to run and to wait."""
    parts = urlsplit(server.url)
    connections: list[http.client.HTTPConnection] = []
    message = {"role": "user", "content": "others"}
    body = json.dumps({"model": "tiny", "messages": [message], "stream": True, "max_tokens": 2_500})
    try:
        for more in (RUNNING_REQUESTS, QUEUED_REQUESTS):  # not at once: all that has not begun to run is in the queue
            for _ in range(more):
                connections.append(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds(30)))
                connections[-1].request("POST", CHAT, body, {"content-type": "application/json"})
            until(lambda: work_of(server) >= len(connections), "its places are taken")
        yield
    finally:
        for connection in connections:
            connection.close()
        until(lambda: work_of(server) == 0, "it is empty again")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_full_queue_is_tried_elsewhere_and_else_refused_for_a_second(
    sglang_aggregated: Server, tmp_path: Path, name: str, stream: bool
) -> None:
    """Whole, SGLang says it with a 503; in a stream, with an error event under 200. The client sees no difference."""
    table = toml(sglang_aggregated)
    with (
        ScriptedEngine("other", sound) as other,
        ProxyProcess(tmp_path / "alone", [table]) as alone,
        ProxyProcess(tmp_path / "paired", [table, other.toml()], policy="round_robin") as paired,
    ):
        with full(sglang_aggregated), alone.client() as one, paired.client() as two:
            body = conversation(name, stream=stream, max_tokens=2)
            refused = one.post(CHAT, json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1"), refused.text
            assert "queue is full" in refused.json()["error"]["message"]
            assert [two.post(CHAT, json=body).status_code for _ in range(2)] == [200, 200]
        rows = paired.rows(expected=2)
        assert [len(json.loads(row["rids"])) for row in rows] == [2, 2]  # each was sent to the full one first
        row = alone.rows(expected=1)[0]
        assert (row["outcome"], row["price_nanousd"]) == ("engine_error", 0)


def test_an_error_that_quotes_the_body_goes_to_its_client_and_nowhere_else(behind: Behind) -> None:
    with behind.proxy.client() as client:
        for stream in (False, True):
            body = conversation(CANARY, stream=stream)
            body["messages"].append({"role": CANARY, "content": "x"})
            answer = client.post(CHAT, json=body)
            assert answer.status_code == 400
            message = answer.json()["error"]["message"]
            assert CANARY in message
            assert "File " not in message  # of the machine that the engine runs on
    assert behind.proxy.rows(expected=2)[0]["outcome"] == "refused"
    behind.proxy.stop()
    assert CANARY not in behind.proxy.written()


@pytest.mark.parametrize("prompt", ["", [], [""], ["a", ""], ["", "a"], [[]], [[5, 6], []]], ids=repr)
def test_no_prompt_ends_a_server(behind: Behind, prompt: Any) -> None:
    with behind.proxy.client() as client:
        answer = client.post("/v1/completions", json={"model": "kimi-k2.5", "prompt": prompt, "max_tokens": 2})
        assert answer.status_code == 400
        served = client.post("/v1/completions", json={"model": "kimi-k2.5", "prompt": ["a", "b"], "max_tokens": 2})
        assert [choice["index"] for choice in served.json()["choices"]] == [0, 1], served.text


def test_a_pair_refuses_choices_that_it_would_keep_waiting(pair: Behind, name: str) -> None:
    with pair.proxy.client() as client:
        assert client.post(CHAT, json=conversation(name, n=2)).json()["error"]["param"] == "n"
    until(pair.idle, "nobody waits")


def test_choices_share_their_prompt_and_tell_nothing_of_the_cache(aggregated: Behind, name: str) -> None:
    with aggregated.proxy.client() as client, aggregated.proxy.admin() as admin:
        usage = client.post(CHAT, json=conversation(name, n=2, max_tokens=4)).json()["usage"]
        assert contract_receipt.check(usage) == []
        assert contract_receipt.cached_tokens(usage) == 0  # SGLang has reported what its first answer computed
        assert "cached_tokens" in usage["warmroute"]["estimated"]
        lines = admin.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("warmroute_prediction_error_ratio_count")]
    assert [count.rpartition(" ")[2] for count in counts] == ["0", "0", "0"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_choices_end_with_their_client(aggregated: Behind, name: str, stream: bool) -> None:
    with aggregated.proxy.send(conversation(name, n=2, stream=stream, max_tokens=4_000)):
        until(lambda: work_of(aggregated.computes) == 2, "both run")
    until(aggregated.idle, "none runs on", STOPS_WITHIN_S)
    assert aggregated.proxy.rows(expected=1)[0]["outcome"] == "client_left"


def test_many_clients_at_once_are_all_answered_or_told_to_come_again(aggregated: Behind, name: str) -> None:
    def ask(number: int) -> int:
        with aggregated.proxy.client() as client:
            return client.post(CHAT, json=conversation(f"{name} {number}", max_tokens=40)).status_code

    count = RUNNING_REQUESTS + QUEUED_REQUESTS + 8
    with ThreadPoolExecutor(count) as pool:
        statuses = list(pool.map(ask, range(count)))
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= QUEUED_REQUESTS
    until(aggregated.idle, "nothing is left")
