"""Several answers of one request (n > 1, a list of prompts): to the engine they are requests with ids of their own."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.stopped import Several
from warmroute.contract import receipt as contract_receipt

from .kv_scene import metric

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

LONG: dict[str, Any] = {"metadata": {"script": json.dumps({"output_tokens": 20_000})}, "max_tokens": 20_000}
"""An answer of 16 seconds."""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EngineProcess]]:
    folder = tmp_path_factory.mktemp("several")
    roles = {"p0": "prefill", "d0": "decode", "a0": "aggregated"}
    with Several([EngineProcess(folder, name, role) for name, role in roles.items()]) as started:
        yield {engine.id: engine for engine in started}


@pytest.fixture(scope="module")
def alone(engines: dict[str, EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy in front of the engine that does both halves."""
    with serving(engines, tmp_path_factory.mktemp("alone"), "a0") as started:
        yield started


def serving(engines: dict[str, EngineProcess], folder: Path, *names: str) -> ProxyProcess:
    return ProxyProcess(folder / "p", [engines[name].toml("east") for name in names]).start()


def prompts(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"model": "kimi-k2.5", "prompt": list(texts), **fields}


def test_choices_go_where_both_halves_are_done(engines: dict[str, EngineProcess], tmp_path: Path) -> None:
    """All choices have one bootstrap room: SGLang's decode would serve one and keep the others waiting."""
    with serving(engines, tmp_path, "p0", "d0", "a0") as proxy, proxy.client() as client:
        for number in range(4):
            answer = client.post(CHAT, json=chat(f"some {number}", n=3, max_tokens=2)).json()
            assert len(answer["choices"]) == 3
            assert [worker["id"] for worker in answer["usage"]["warmroute"]["workers"]] == ["a0"]


def test_choices_are_refused_where_engines_do_one_half_only(engines: dict[str, EngineProcess], tmp_path: Path) -> None:
    with serving(engines, tmp_path, "p0", "d0") as proxy, proxy.client() as client:
        answer = client.post(CHAT, json=chat(n=2))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
        assert client.post(CHAT, json=chat(n=1, max_tokens=2)).status_code == 200
        several = client.post(COMPLETIONS, json=prompts("one", "two", "three", max_tokens=2)).json()
        assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, chat("leave", n=2, **LONG)), (COMPLETIONS, prompts("leave", "leave too", **LONG))],
    ids=["choices", "prompts"],
)
def test_a_client_that_leaves_ends_them_all(
    engines: dict[str, EngineProcess], alone: ProxyProcess, path: str, body: dict[str, Any], stream: bool
) -> None:
    """The engine knows none of them by the id that the proxy gave: their connection is closed."""
    key = {"x-session-affinity": f"leaves {path} {stream}"}
    with alone.client() as client:
        first = client.post(CHAT, json=chat("first", max_tokens=1), headers=key).json()["usage"]["warmroute"]
    parts = urlsplit(alone.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds(30))
    headers = {"authorization": f"Bearer {alone.keys[0]}", "content-type": "application/json", **key}
    connection.request("POST", path, json.dumps(body | {"stream": stream}), headers)
    until(engines["a0"].running, "they run")
    assert connection.sock
    connection.sock.close()
    connection.close()
    until(lambda: engines["a0"].running() == 0, "none runs on", 5.0)

    def rows() -> list[dict[str, Any]]:
        return [row for row in alone.rows() if row["session"] == first["session"] and row["id"] != first["id"]]

    (row,) = until(rows, "its row")
    usage = json.loads(row["usage"])
    assert row["outcome"] == "client_left"
    assert contract_receipt.check(usage) == []
    assert "prompt_tokens" in usage["warmroute"]["estimated"]


def test_what_choices_share_is_no_error_of_prediction(alone: ProxyProcess) -> None:
    """A prompt that nobody has seen is reported as cached, by its own first choice. That is no cached price."""
    before = metric(alone, "warmroute_prediction_error_ratio_count")
    body = chat("new to all", max_tokens=2)
    body["messages"][0]["content"] = "You are new to all. " * 60
    with alone.client() as client:
        usage = client.post(CHAT, json=body | {"n": 2}).json()["usage"]
        assert contract_receipt.cached_tokens(usage) == 0
        assert "cached_tokens" in usage["warmroute"]["estimated"]
        assert contract_receipt.check(usage) == []
        assert metric(alone, "warmroute_prediction_error_ratio_count") == before
        client.post(CHAT, json=body)
        assert metric(alone, "warmroute_prediction_error_ratio_count") == before + 1
        again = client.post(CHAT, json=body | {"n": 2}).json()["usage"]
        assert contract_receipt.cached_tokens(again) > 0
        assert "cached_tokens" not in again["warmroute"]["estimated"]
