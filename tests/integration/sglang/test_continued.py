"""A real server is killed in the middle of its answer, and another one goes on with it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.proxy.test_continued import ON, USAGE, check_one_answer, text_of, whole_text
from tests.integration.proxy.test_faults import Stream
from tests.integration.sglang.behind import Behind, conversation, work_of
from tests.machine import seconds
from tests.subjects.processes import until
from warmroute_backend.sglang import Server

TOKENS = 600
LONG = {**USAGE, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}


@pytest.fixture
def killed() -> Iterator[list[Server]]:
    """The servers that a test has killed. Others use them after it, so they are started again."""
    found: list[Server] = []
    yield found
    for server in found:
        server.restart()


@pytest.mark.timeout(180)
def test_an_answer_goes_on_at_another_server(
    sglang_aggregated: Server, sglang_pair: tuple[Server, Server], killed: list[Server], tmp_path: Path, name: str
) -> None:
    servers = (sglang_aggregated, *sglang_pair)
    with Behind(tmp_path, *servers, model=ON) as behind:
        stream = Stream(behind.proxy, conversation(name, **LONG))
        until(lambda: stream.text.count('"content"') > 20, "it talks", 60.0)
        victim = sglang_aggregated if work_of(sglang_aggregated) else sglang_pair[1]
        killed.append(victim)
        victim.kill()
        stream.join(seconds(60))
        usage = check_one_answer(whole_text(stream))
        row = behind.proxy.rows(expected=1)[0]
        until(behind.idle, "nobody works for the dead", 30.0)
        whole = Stream(behind.proxy, conversation(name, **LONG))
        whole.join(seconds(60))
        unbroken = check_one_answer(whole_text(whole))
    assert usage["warmroute"]["continued"]["after_tokens"] > 10
    assert {worker["id"] for worker in usage["warmroute"]["workers"]}.isdisjoint({victim.role})
    assert len(json.loads(row["rids"])) == 2
    assert text_of(whole.text)[:20] == text_of(stream.text)[:20]
    # Counted are events. What was said may be cut into fewer tokens as a prompt; and a server that is kept waiting
    # sends several tokens in one event, which then count as prompt.
    said = usage["warmroute"]["continued"]["after_tokens"]
    assert unbroken["prompt_tokens"] - said / 5 <= usage["prompt_tokens"] < unbroken["prompt_tokens"] + TOKENS
    assert abs(usage["completion_tokens"] - TOKENS) <= said / 5
