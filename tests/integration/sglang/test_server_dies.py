"""A real server is killed, frozen or started again under a turn: the second table of docs/reference/failures.md.

`WARMROUTE_UPDATE_DOCS=1` writes it anew.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.proxy.test_faults import Stream
from tests.integration.sglang.behind import LONG_PROMPT, Behind, conversation
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, events, until
from tests.subjects.sglang import Servers
from warmroute.contract import receipt as contract_receipt
from warmroute_backend.sglang import Server

PAGE = Path(__file__).parents[3] / "docs/reference/failures.md"
BEGIN, END = "<!-- made by tests/integration/sglang/test_server_dies.py -->\n", "<!-- end of SGLang -->\n"
TOLD_WITHIN_S = 30.0
ANSWER_TOKENS = 2_000
IDLE_S = 10
"""Between tokens. A frozen server is found out by it; one that computes for others on a busy machine must not be."""


@dataclass(frozen=True)
class Seen:
    """What the client had, its row, and the usage of the same turn asked again once the server was back."""

    stream: Stream
    row: dict[str, Any]
    again: dict[str, Any]


def under(behind: Behind, text: str, started: Callable[[Stream], bool], strike: Callable[[], None]) -> Stream:
    """A stream whose server is struck once it has `started`; what its client then had."""
    stream = Stream(behind.proxy, conversation(text, stream=True, max_tokens=ANSWER_TOKENS))
    until(lambda: started(stream) or not stream.is_alive(), "the turn runs")
    assert stream.is_alive(), (stream.status, stream.text)
    strike()
    stream.join(seconds(TOLD_WITHIN_S))
    assert not stream.is_alive()
    return stream


def recovers(proxy: ProxyProcess, text: str) -> dict[str, Any]:
    """The usage of the turn, asked until it succeeds: while the proxy finds out that the server is back, it may not."""

    def answered() -> Any:
        with proxy.client() as client:
            answer = client.post("/v1/chat/completions", json=conversation(text, max_tokens=3))
        return answer.json()["usage"] if answer.status_code == 200 else None

    usage: dict[str, Any] = until(answered, "a turn succeeds", 60.0)
    assert contract_receipt.check(usage) == []
    return usage


def talks(stream: Stream) -> bool:
    return "content" in stream.text


def killed(
    folder: Path, servers: tuple[Server, ...], victim: Server, text: str, started: Callable[[Behind, Stream], bool]
) -> Seen:
    """SIGKILL of the server and its children, then a start with an empty cache at the same address."""
    with Behind(folder, *servers) as behind:
        recovers(behind.proxy, text)  # so that something is cached, and known to be
        logged = behind.answers.log.stat().st_size
        stream = under(behind, text + LONG_PROMPT, lambda one: started(behind, one), victim.kill)
        row = next(row for row in behind.proxy.rows(expected=2) if row["id"] == stream.receipt)
        until(behind.idle, "nobody works for the dead", 30.0)
        if victim.role == "prefill":  # one that is back before it is missed is never served with
            missed = "Lost connection with prefill instance"
            until(lambda: missed in behind.answers.log_text(logged), "decode misses it", 60.0)
        victim.restart()
        return Seen(stream, row, recovers(behind.proxy, text))


def frozen(folder: Path, server: Server, text: str) -> Seen:
    """SIGSTOP of all its processes in the middle of an answer; SIGCONT once the client was told."""
    assert server.pid is not None
    group = os.getpgid(server.pid)
    with Behind(folder, server, limits=f"idle_timeout_s = {IDLE_S}") as behind:
        recovers(behind.proxy, text)
        try:
            stream = under(behind, text, talks, lambda: os.killpg(group, signal.SIGSTOP))
        finally:
            os.killpg(group, signal.SIGCONT)
        row = next(row for row in behind.proxy.rows(expected=2) if row["id"] == stream.receipt)
        until(behind.idle, "the request that was given up is gone", 30.0)
        return Seen(stream, row, recovers(behind.proxy, text))


@pytest.fixture(scope="module")
def observed(sglang_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    folder = tmp_path_factory.mktemp("dies")
    sglang_servers.start(["aggregated", "prefill", "decode"])
    one = sglang_servers.get("aggregated")
    pair = prefill, decode = sglang_servers.get("prefill"), sglang_servers.get("decode")
    word = folder.name + str(os.getpid())
    return {
        "is frozen in the middle of its answer (SIGSTOP)": frozen(folder / "f", one, f"{word} frozen"),
        "is killed in the middle of its answer (SIGKILL)": killed(
            folder / "a", (one,), one, f"{word} killed", lambda _, stream: talks(stream)
        ),
        "is killed while it computes the prompt, as prefill": killed(
            folder / "p", pair, prefill, f"{word} prefill", lambda behind, _: not behind.idle()
        ),
        "is killed in the middle of its answer, as decode": killed(
            folder / "d", pair, decode, f"{word} decode", lambda _, stream: talks(stream)
        ),
    }


def test_the_client_is_told_and_nothing_broken_is_charged(observed: dict[str, Seen]) -> None:
    for title, seen in observed.items():
        assert seen.stream.failed_clearly, title
        assert (seen.row["outcome"], seen.row["price_nanousd"]) == ("engine_error", 0), title


def test_what_a_server_that_is_back_has_cached_is_known(observed: dict[str, Seen]) -> None:
    for title, seen in observed.items():
        cached, predicted = contract_receipt.cached_tokens(seen.again), seen.again["warmroute"]["predicted_cached"]
        assert (cached > 0) == (predicted > 0), (title, cached, predicted)


def test_the_page_says_what_was_seen(observed: dict[str, Seen]) -> None:
    made = _table(observed)
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    if os.environ.get("WARMROUTE_UPDATE_DOCS") == "1":
        PAGE.write_text(before + BEGIN + made + END + after)
    assert PAGE.read_text() == before + BEGIN + made + END + after


def _table(observed: dict[str, Seen]) -> str:
    lines = ["| a server that | streamed | ledger | the same turn, once it is back |\n", "|---|---|---|---|\n"]
    for title, seen in observed.items():
        tiers = [tier for tier, tokens in seen.again["warmroute"]["cached"].items() if tokens]
        back = (
            f"its prefix is cached ({', '.join(tiers)}), as predicted" if tiers else "nothing is cached, as predicted"
        )
        lines.append(f"| {title} | {_what(seen.stream)} | `{seen.row['outcome']}`, charged 0 | {back} |\n")
    return "".join(lines)


def _what(stream: Stream) -> str:
    if stream.status != 200:
        return f"{stream.status}, as JSON"
    content = "content, then " if talks(stream) else ""
    return f"{content}an error event (`{events(stream.text)[-1]['error']['code']}`)"
