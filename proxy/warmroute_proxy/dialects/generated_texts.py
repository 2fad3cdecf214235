"""The texts that an engine has generated in a whole answer.

Never compiled: mypyc keeps no annotations of more than a name, by which msgspec decodes.
"""

from typing import Final

import msgspec


class _Call(msgspec.Struct):
    function: msgspec.Raw | None = None


class _Message(msgspec.Struct):
    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None

    def texts(self) -> list[str]:
        """What was generated of it."""
        message = self.message or _Message()
        calls = [
            str(call.function, "utf-8", "replace") for call in message.tool_calls or () if call.function is not None
        ]
        content = message.content
        parts = [str(piece, "utf-8", "replace") for piece in content] if isinstance(content, list) else [content or ""]
        return [self.text or "", *parts, message.reasoning_content or "", *calls]


_decode: Final = msgspec.json.Decoder(list[_Choice]).decode


def generated_bytes(choices: bytes | msgspec.Raw) -> int:
    """How long the texts of an answer's choices are together; 0 where they are none."""
    try:
        found = _decode(choices)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return 0
    texts = [text for choice in found for text in choice.texts()]
    return sum(len(text.encode(errors="replace")) for text in texts)
