"""Small attacks: what an error tells, what a token is good for elsewhere, what a peer that hangs delays."""

import hashlib
import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import PLAIN, ProxyProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine
from warmroute.contract import headers as names
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.regions.forward_claim import Forwards

CANARY = "canary-7d1f"


@pytest.mark.parametrize("path", ["/health", "/ready", "/openapi.json", "/v1/models", "/v1/models/kimi", "/v1/usage"])
def test_head_is_answered_as_get_without_a_body(proxy: ProxyProcess, path: str) -> None:
    with proxy.client() as client:
        got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert {n: v for n, v in head.headers.items() if n != "date"} == {
        n: v for n, v in got.headers.items() if n != "date"
    }
    assert head.headers["content-length"] == str(len(got.content))


@pytest.mark.parametrize("field", ["model", "name", "again"])
def test_a_long_value_is_not_sent_back(proxy: ProxyProcess, field: str) -> None:
    long = "m" * 24_000_000
    body = {
        "model": json.dumps(chat() | {"model": long}),
        "name": json.dumps(chat() | {"tools": [{"type": "function", "function": {"name": long * 2}}], long: 1}),
        "again": json.dumps(chat())[:-1] + f', "{long}": 1, "{long}": 2}}',
    }[field]
    with proxy.client() as client:
        answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert len(answer.content) < 10_000
        assert client.get(f"/v1/models/{'m' * 7000}").status_code in {404, 414}


def test_what_an_engine_says_of_itself_is_for_the_log_without_what_it_quotes(tmp_path: Path) -> None:
    said = (
        "Decode transfer failed for request rank=3 decode_req.req.rid='00ff' decode_req.req.bootstrap_room=812734 "
        f"with exception KVTransferError(bootstrap_room=812734): Failed to get '{CANARY}' from 10.0.0.7:8998"
    )

    def fails(handler: Handler) -> None:
        handler.reply(500, json.dumps({"object": "error", "message": said, "code": 500}).encode())

    with ScriptedEngine("e0", fails) as scripted, ProxyProcess(tmp_path / "p", [scripted.toml()]) as proxy:
        with proxy.client() as client:
            answer = client.post("/v1/chat/completions", json=chat(CANARY))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (502, "engine_error")
        assert "handed over" in error["message"]
        assert not any(word in answer.text for word in ("rid", "room", "rank", "10.0.0.7", CANARY))
        line = until(lambda: [line for line in proxy.written().splitlines() if "Decode transfer" in line], "a line")[0]
        assert "rank=3" in line
        assert "KVTransferError" in line
        assert str(scripted.sent()["rid"])[:8] in proxy.written()
        assert CANARY not in proxy.written()


def test_a_token_for_one_region_is_of_no_use_in_another(proxy: ProxyProcess) -> None:
    secrets = Secrets((proxy.folder.parent / "secret").read_bytes().strip())
    signer = Forwards(secrets, "west", time.time, lambda count: os.urandom(count).hex())
    body = json.dumps(chat(max_tokens=1)).encode()
    answers = []
    for audience in ("east", "north"):
        id_, digest = "wr-" + os.urandom(12).hex(), hashlib.sha256(body).hexdigest()
        token = signer.sign("first", "first", id_, audience, digest, 30.0)
        headers = {names.FORWARD: token, "content-type": "application/json"}
        url = f"{proxy.base_url}/chat/completions"
        answers.append(httpx.post(url, content=body, headers=headers, verify=PLAIN, timeout=seconds(10)))
    assert answers[0].status_code == 200
    assert (answers[1].status_code, answers[1].json()["error"]["code"]) == (401, "invalid_forward")


def test_peers_that_hang_delay_no_probe_of_an_engine(tmp_path: Path) -> None:
    """Five regions accept connections and say nothing. A frozen engine was found after 12 s instead of 3 s."""
    with ExitStack() as stack:
        deaf = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
        regions = "\n".join(
            f'[[region]]\nname = "r{number}"\nurl = "http://127.0.0.1:{one.getsockname()[1]}"\nrtt_ms = 20'
            for number, one in enumerate(deaf)
        )
        scripted = stack.enter_context(ScriptedEngine("e0", lambda handler: handler.cut()))
        stack.enter_context(ProxyProcess(tmp_path / "p", [scripted.toml(), regions]))
        asked = [one.accept()[0] for one in deaf]
        scripted.was_probed.clear()
        assert all(one.recv(65536).startswith(b"GET /ready") for one in asked)
        assert scripted.was_probed.wait(seconds(20)), "the engine is probed again"
        for one in asked:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):  # not closed: each peer is still being waited for
                one.recv(1)
            one.close()
