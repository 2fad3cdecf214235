"""One half of a pair fails before the other has what it needs: the other is told to stop, and holds nothing after it.

The half that fails is scripted; the half that is left waiting is SGLang. By itself SGLang's prefill would wait for a
decode server until its bootstrap time is up, and its decode server for the KV of a prefill that was aborted.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.integration.sglang.behind import conversation, toml, work_of
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, until
from tests.subjects.scripted import Handler, Script, ScriptedEngine
from warmroute_backend.sglang import Server

STOPS_WITHIN_S = 5.0
"""Half of the bootstrap time of the servers under test, and a third of their time for a transfer."""

# How long the proxy waits for the half that is left: what these tests are about.
pytestmark = pytest.mark.real_deadlines("attempt", "inference_request")

IMPATIENT = "first_token_timeout_s = 2"
"""For a half that never answers. Of the others, the answer has to come first, however slow the machine."""

Pair = tuple[Server, Server]


def refuses(handler: Handler) -> None:
    handler.reply(400, b'{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}')


def fails(handler: Handler) -> None:
    handler.reply(500, b'{"object":"error","message":"no","type":"500","param":null,"code":500}')


def breaks(handler: Handler) -> None:
    handler.cut()


def never_answers(handler: Handler) -> None:
    assert isinstance(handler.engine, Half)
    handler.engine.left.wait(seconds(60))
    handler.cut()


class Half(ScriptedEngine):
    """A prefill or decode server that does as its script says, once the other has the request too."""

    def __init__(self, role: str, script: Script, before: Callable[[], object]) -> None:
        super().__init__(role, self._run)
        self.role = role
        self.left = threading.Event()
        self._then = script
        self._before = before

    def _run(self, handler: Handler) -> None:
        self._before()
        self._then(handler)

    def table(self, bootstrap: str) -> str:
        return f'[[engine]]\nid = "scripted"\nurl = "{self.url}"\nregion = "east"\nrole = "{self.role}"\n{bootstrap}'


@contextmanager
def beside(
    folder: Path, pair: Pair, role: str, script: Script, limits: str = ""
) -> Iterator[tuple[ProxyProcess, Server]]:
    """A proxy before one server of the pair and, in place of the other (`role`), a scripted one."""
    prefill, decode = pair
    real = decode if role == "prefill" else prefill
    half = Half(role, script, lambda: until(lambda: work_of(real), "the other half waits", 20.0))
    address = f'bootstrap_host = "{prefill.bootstrap_host}"\nbootstrap_port = {prefill.bootstrap_port}'
    proxy = ProxyProcess(folder / "p", [toml(real), half.table(address if role == "prefill" else "")], limits=limits)
    try:
        yield proxy.start(), real
    finally:
        half.left.set()
        proxy.stop()
        half.stop()


@pytest.mark.parametrize("script", [refuses, fails, breaks, never_answers])
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_other_half_is_told_to_stop(
    sglang_pair: Pair, tmp_path: Path, name: str, role: str, script: Script, stream: bool
) -> None:
    limits = IMPATIENT if script is never_answers else ""
    with beside(tmp_path, sglang_pair, role, script, limits) as (proxy, real):
        with proxy.client() as client:
            answer = client.post("/v1/chat/completions", json=conversation(name, stream=stream, max_tokens=4))
        expected = {"refuses": 400, "fails": 502, "breaks": 502, "never_answers": 504}
        assert answer.status_code == expected[script.__name__], answer.text
        until(lambda: work_of(real) == 0, "it holds nothing for a request that failed", STOPS_WITHIN_S)
        assert proxy.rows(expected=1)[0]["price_nanousd"] == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_client_that_leaves_while_the_halves_meet(sglang_pair: Pair, tmp_path: Path, name: str, role: str) -> None:
    with beside(tmp_path, sglang_pair, role, never_answers) as (proxy, real):
        with proxy.client() as client, pytest.raises(httpx.ReadTimeout):
            limits = httpx.Timeout(seconds(20), read=1.0)
            client.post("/v1/chat/completions", json=conversation(name, max_tokens=4), timeout=limits)
        until(lambda: work_of(real) == 0, "it holds nothing for a client that left", STOPS_WITHIN_S)
        assert proxy.rows(expected=1)[0]["outcome"] == "client_left"
