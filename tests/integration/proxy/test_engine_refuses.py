"""What becomes of an engine that takes no more work, or cannot be reached: what its client learns, what counts."""

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apis.played import Said, Scene, completion, streamed
from tests.subjects.processes import ProxyProcess, chat, until
from tests.subjects.scripted import ScriptedEngine
from warmroute_proxy.server.control.exposition import page_of

pytestmark = pytest.mark.full

FULL = {"object": "error", "message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", "code": 503}


def ask(proxy: ProxyProcess, body: dict[str, Any]) -> httpx.Response:
    with proxy.client() as client:
        return client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize(("kind", "counted"), [("sglang", 0), ("openai", 3)])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_full_queue_of_sglang_is_no_evidence_against_it(
    tmp_path: Path, kind: str, counted: int, stream: bool
) -> None:
    """Another server's 503 may come from whatever stands before it, and nothing else tells that it is down."""
    full = streamed({"error": FULL}, "[DONE]") if stream else Said(json.dumps(FULL).encode(), 503)
    soon = [] if counted else [completion({"content": "hi"}, None, stream=stream)]
    scene = Scene(tmp_path / "p", [full] * 3 + soon, kind=kind, engine_count=1)
    body = json.dumps(chat(stream=stream)).encode()
    *answers, last = scene.play_turns("/v1/chat/completions", [lambda _: body] * (3 + len(soon)))
    assert last.status == (503 if counted else 200)
    for answer in answers:
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert json.loads(answer.body)["error"]["message"] == "The request queue is full."
    judged = 'warmroute_engine_failures_total{worker="e0",judged="evidence"} 3\n' in page_of(scene.metrics, [])
    assert judged == bool(counted)
    assert scene.router is not None
    assert scene.router.snapshot(0.0)["workers"]["e0"]["failures_in_a_row"] == 0


BOOTSTRAP = "Decode transfer failed: Could not fetch prefill parallel info from bootstrap_addr: "
LONG = "the body " + "x" * 1_000_000


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        *(
            (500, BOOTSTRAP + address, "the prompt could not be handed over from the prefill to the decode engine")
            for address in ("10.0.0.7:8998", "http://prefill-0.internal:30000/route?x=1", "[fd00::7]:8998")
        ),
        (400, LONG, "the body xxx"),
        (500, LONG, "the body xxx"),
    ],
)
def test_of_an_engines_error_a_client_gets_what_it_may_know_and_a_message_long(
    tmp_path: Path, code: int, said: str, told: str, stream: bool
) -> None:
    """SGLang's decode names its partner when it cannot reach it; some engines quote the whole request."""
    error = {"object": "error", "message": said, "code": code if stream else "y" * 1_000, "param": "z" * 1_000}
    body = json.dumps(error if code == 500 else {"error": error}).encode()
    says = streamed({"error": error}, "[DONE]") if stream else Said(body, code)
    asked = json.dumps(chat(stream=stream)).encode()
    answer = Scene(tmp_path / "p", [says], kind="sglang").play("/v1/chat/completions", asked)
    message = json.loads(answer.body)["error"]["message"]
    assert answer.status == (400 if code == 400 else 502)
    assert message.startswith(told) if said is LONG else message == told
    assert len(answer.body) < 5_000


def test_a_client_does_not_learn_where_an_engine_is(tmp_path: Path) -> None:
    with socket.socket() as nobody:  # bound and not listening: a connection is refused
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        engine = f'[[engine]]\nid = "e0"\nurl = "http://{address}"\nregion = "east"\nkind = "openai"'
        with ProxyProcess(tmp_path / "p", [engine]) as proxy:
            answer = ask(proxy, chat("anybody?"))
            assert (answer.status_code, answer.json()["error"]["message"]) == (502, "cannot connect to the engine")
            assert address not in answer.text + str(answer.headers)
            until(lambda: f"cannot connect to {address}: " in proxy.written(), "the log says where")


def test_an_engine_that_is_back_gets_nothing_before_it_has_said_whether_it_is_another(tmp_path: Path) -> None:
    with (
        ScriptedEngine("e0", lambda handler: handler.reply(200, b"{}")) as engine,
        ProxyProcess(tmp_path / "p", [engine.toml()]) as proxy,
    ):

        def up() -> bool:
            return bool(proxy.workers()["e0"]["health"] == "up")

        until(up, "it is up")
        engine.dead = True
        until(lambda: not up(), "the proxy has noticed")
        engine.may_inform.clear()
        engine.asked_for_info.clear()
        engine.dead = False
        try:
            until(engine.asked_for_info.is_set, "it is asked who it is")
            assert not up()
        finally:
            engine.may_inform.set()
        until(up, "it is up again")
