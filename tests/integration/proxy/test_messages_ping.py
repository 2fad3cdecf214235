"""A stream of messages says that it lives while its prompt is computed."""

import threading
from pathlib import Path

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess
from tests.subjects.scripted import ROLE, Handler, ScriptedEngine, delta

USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}


def test_pings_come_while_the_prompt_is_computed(tmp_path: Path) -> None:
    """The engine answers once the client has a ping."""
    pinged = threading.Event()

    def answers(handler: Handler) -> None:
        pinged.wait(seconds(20))
        handler.stream(ROLE, delta("hi"), delta(finish="stop"), USAGE, "[DONE]")

    body = {"model": "kimi-k2.5", "max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    names = []
    with (
        ScriptedEngine("east-e0", answers) as engine,
        ProxyProcess(tmp_path / "p", [engine.toml()], limits="head_hold_s = 0.05") as proxy,
        proxy.client() as client,
        client.stream("POST", "/v1/messages", json=body) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            if names[-1:] == ["ping"]:
                pinged.set()
    assert names[:2] == ["message_start", "ping"]
    assert names[-4:] == ["content_block_delta", "content_block_stop", "message_delta", "message_stop"]
