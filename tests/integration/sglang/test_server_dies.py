"""A server of a pair is killed: the client is told, nothing broken is charged, and the next turn goes well."""

from collections.abc import Callable

import pytest

from tests.integration.proxy.harness import ProxyProcess, until
from tests.integration.proxy.test_faults import Stream
from tests.integration.sglang.behind import LONG_PROMPT, Behind, conversation
from warmroute_backend.sglang import Server

pytestmark = pytest.mark.timeout(400)  # of a restart

TOLD_WITHIN_S = 30.0


def recovers(proxy: ProxyProcess) -> None:
    """Turns succeed again. While the proxy finds out that the server is back, it may refuse."""

    def answered() -> bool:
        with proxy.client() as client:
            return client.post("/v1/chat/completions", json=conversation("after", max_tokens=3)).status_code == 200

    until(answered, "a turn succeeds", 60.0)


def dies(behind: Behind, server: Server, text: str, started: Callable[[Stream], bool]) -> Stream:
    """A stream whose server is killed once it has `started`; what its client then had."""
    stream = Stream(behind.proxy, conversation(text, stream=True, max_tokens=2_000))
    until(lambda: started(stream) or not stream.is_alive(), "the turn runs")
    assert stream.is_alive(), (stream.status, stream.text)
    server.kill()
    stream.join(TOLD_WITHIN_S)
    assert not stream.is_alive()
    return stream


def test_decode_dies_under_a_stream(pair: Behind, name: str) -> None:
    stream = dies(pair, pair.answers, name, lambda one: "content" in one.text)
    assert stream.status == 200
    assert stream.failed_clearly
    row = pair.proxy.rows(expected=1)[0]
    assert (row["outcome"], row["price_nanousd"]) == ("engine_error", 0)
    until(pair.idle, "prefill holds nothing for the dead", 30.0)
    pair.answers.restart()
    recovers(pair.proxy)


def test_prefill_dies_while_it_computes(pair: Behind, name: str) -> None:
    stream = dies(pair, pair.computes, name + LONG_PROMPT, lambda _: not pair.idle())
    assert stream.failed_clearly
    row = pair.proxy.rows(expected=1)[0]
    assert (row["outcome"], row["price_nanousd"]) == ("engine_error", 0)
    until(pair.idle, "decode waits for nobody", 30.0)
    pair.computes.restart()
    recovers(pair.proxy)
