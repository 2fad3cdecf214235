"""The JSON form of a message: the raw text of each value that a chat template prints."""

from typing import Final

import msgspec
from msgspec import Raw

ABSENT: Final = Raw(b"")

OTHER: Final = 0
USER: Final = 1
ASSISTANT: Final = 2
TOOL: Final = 3
"""The numbers of roles in `Fingerprint.messages`. `OTHER` stands for system, developer and all further roles."""


class _Function(msgspec.Struct, gc=False):
    name: Raw = ABSENT
    arguments: Raw = ABSENT


class ToolCall(msgspec.Struct, gc=False):
    """A tool call in an assistant's message."""

    id: Raw = ABSENT
    function: _Function | None = None
    custom: Raw = ABSENT


class Message(msgspec.Struct, gc=False):
    role: str
    content: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    reasoning: Raw = ABSENT
    """vLLM's name for `reasoning_content`."""

    tool_calls: list[ToolCall] | None = None
    tool_call_id: Raw = ABSENT
    name: Raw = ABSENT
