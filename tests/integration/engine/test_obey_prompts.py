"""Lines of a prompt that order the answer: obeyed with `--obey-prompts`, text like any other without it."""

from collections.abc import Callable
from typing import Any

from .conftest import EngineProcess

PROMPT = 'obey: think 30; call ls {"path": "/"}\nobey: answer Done.'
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]


def ask(engine: EngineProcess, *more: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": PROMPT}, *more]
    body = {"model": "served", "messages": messages, "tools": TOOLS}
    answer = engine.client.post("/v1/chat/completions", json=body).json()
    return {**answer["choices"][0], "usage": answer["usage"]}


def test_prompts_are_obeyed_only_by_engines_that_are_told_to(start_engine: Callable[..., EngineProcess]) -> None:
    engine = start_engine("--speed", "50", "--obey-prompts")
    first = ask(engine)
    assert first["finish_reason"] == "tool_calls"
    assert first["message"]["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "/"}'}
    assert first["usage"]["reasoning_tokens"] == 30
    assert first["message"]["reasoning_content"]
    call = {"role": "assistant", "content": None, "tool_calls": first["message"]["tool_calls"]}
    result = {"role": "tool", "tool_call_id": first["message"]["tool_calls"][0]["id"], "content": "bin"}
    assert ask(engine, call, result)["message"]["content"] == "Done."

    other = ask(start_engine("--speed", "50"))
    assert other["finish_reason"] == "stop"
    assert "tool_calls" not in other["message"]
