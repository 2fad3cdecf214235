"""Prompts that the tests of the guard begin with, and the break between two of them."""

from typing import Any

from warmroute.guard.compare import Break
from warmroute.guard.memory import Memory, Reading

SYSTEM_TEXT = """You are a coding agent. Be brief.
Rules:
- read before you write
<env>
Working directory: /home/dev/shop
Today's date: Fri Nov 20 2026
Session: 3f2b8c9e-1d4a-4f6b-9a7c-0e5d2b1a8f33
</env>
Instructions from: /home/dev/shop/AGENTS.md
# Shop
- run the tests with pytest
"""
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a.py"}'}}
IMAGE = "https://files.example/a.png?sig=111&exp=1"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": SYSTEM_TEXT},
    {"role": "user", "content": "Fix the test."},
    {"role": "assistant", "content": None, "reasoning_content": "Let me look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "def a():\n    return 1\n" * 40},
    {"role": "assistant", "content": "It is fixed.", "reasoning_content": "That was easy."},
    {"role": "user", "content": [
        {"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]},
    {"role": "assistant", "content": "A picture of a shop."},
]  # fmt: skip
NEXT = {"role": "user", "content": "Thank you. What is next?"}


def tool(name: str, text: str = "does it") -> dict[str, Any]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}


TOOLS = [tool("bash"), tool("edit"), tool("read")]
BEFORE: dict[str, Any] = {"model": "m", "tools": TOOLS, "messages": MESSAGES}


def with_message(at: int, **changes: Any) -> dict[str, Any]:
    """The next turn, in which one message is another."""
    messages = [*MESSAGES[:at], {**MESSAGES[at], **changes}, *MESSAGES[at + 1 :], NEXT]
    return {**BEFORE, "messages": messages}


def with_system(old: str, new: str) -> dict[str, Any]:
    """The next turn, in which the system prompt has another text."""
    assert old in SYSTEM_TEXT
    return with_message(0, content=SYSTEM_TEXT.replace(old, new))


def read_after(before: dict[str, Any], now: dict[str, Any]) -> Reading:
    """How a session's second request is read."""
    memory = Memory()
    memory.keep("s", memory.read("s", before))
    return memory.read("s", now)


def broken(before: dict[str, Any], now: dict[str, Any]) -> Break:
    """What the second of two requests of a session breaks."""
    found = read_after(before, now).broken
    assert found is not None
    return found
