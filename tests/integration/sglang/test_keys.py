"""SGLang with keys (`--api-key`, `--admin-api-key`) behind a proxy that has them in files."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.proxy.test_faults import Stream
from tests.integration.sglang.behind import conversation, toml
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, until
from tests.subjects.sglang import CopiedServer
from warmroute_backend.sglang import Server
from warmroute_backend.sglang.server import START_TIMEOUT_S

KEY, ADMIN_KEY = "engine-canary-77aa", "admin-canary-05cd"
CHAT = "/v1/chat/completions"
LONG = 12_000
"""Tokens of an answer that does not end by itself while a test waits."""

pytestmark = pytest.mark.timeout(seconds(START_TIMEOUT_S + 60))


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own: keys would lock the others' out."""
    flags = ("--api-key", KEY, "--admin-api-key", ADMIN_KEY)
    server = CopiedServer("aggregated", tmp_path_factory.mktemp("locked"), flags=flags)
    try:
        yield server.restart()
    finally:
        server.kill()


def in_front(server: Server, folder: Path, **keys: str) -> ProxyProcess:
    lines = [toml(server)]
    for name, key in keys.items():
        (folder / name).write_text(key + "\n")
        lines.append(f'{name}_file = "{folder}/{name}"')
    return ProxyProcess(folder / "p", ["\n".join(lines)])


def running(server: Server) -> int:
    request = urllib.request.Request(f"{server.url}/v1/loads", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=seconds(20)) as answer:
        return int(json.load(answer)["loads"][0]["num_running_reqs"])


def test_it_serves_tells_its_load_and_obeys_an_abort(locked: Server, tmp_path: Path, name: str) -> None:
    with in_front(locked, tmp_path, key=KEY, admin_key=ADMIN_KEY) as proxy:
        with proxy.client() as client:
            usages: list[Any] = [
                client.post(CHAT, json=conversation(name, max_tokens=3)).json()["usage"] for _ in range(2)
            ]
            assert usages[1]["warmroute"]["cached"]["device"] > 0
            body = conversation(name, stream=True, max_tokens=LONG)
            with client.stream("POST", CHAT, json=body) as answer:
                assert next(answer.iter_bytes())
        until(lambda: running(locked) == 0, "the abort was obeyed", 8.0)
        usage = json.loads(proxy.rows(expected=3)[-1]["usage"])
        assert usage["warmroute"]["estimated"] == []  # which it is when the engine's last word was heard
    for secret in (KEY, ADMIN_KEY):
        assert secret not in proxy.written()


@pytest.mark.real_deadlines("inference_request")
def test_without_the_admin_key_a_closed_connection_ends_the_work(locked: Server, tmp_path: Path, name: str) -> None:
    with in_front(locked, tmp_path, key=KEY) as proxy:
        with (
            proxy.client() as client,
            client.stream("POST", CHAT, json=conversation(name, stream=True, max_tokens=LONG)) as answer,
        ):
            assert next(answer.iter_bytes())
        until(lambda: running(locked) == 0, "nothing runs on", 30.0)  # SGLang looks now and then
        assert "answers 401 at /abort_request: its admin_key_file is missing or wrong" in proxy.written()


def test_a_wrong_key_is_no_fault_of_the_clients(locked: Server, tmp_path: Path, name: str) -> None:
    with in_front(locked, tmp_path, key="wrong-canary") as proxy:
        stream = Stream(proxy, conversation(name, stream=True))
        stream.join(seconds(20))
        error = json.loads(stream.text)["error"]
        assert (stream.status, error["message"]) == (502, "the engine refused the proxy's credentials")
    assert "answers 401 at /server_info: its key_file is missing or wrong" in proxy.written()
    assert "wrong-canary" not in proxy.written()
