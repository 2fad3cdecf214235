"""Recognises prompts that continue from a summary of their history: agent programs begin a summary with known words.

These words are the marks in `contract.compactions`. Only the beginning of each text is compared, in the messages up to
the first answer. Limits: `MAX_MARKED` messages with `MAX_MARKED_BYTES` in all.
"""

from typing import Final

import msgspec
from msgspec import Raw

from warmroute.contract.compactions import MARKS
from warmroute_proxy.core.prompt.parts import texts_of

MAX_MARKED: Final = 64
MAX_MARKED_BYTES: Final = 262_144

_ANY: Final = tuple([mark.words for mark in MARKS])
_USER: Final = tuple([mark.words for mark in MARKS if mark.role == "user"])
_ANSWER: Final = tuple([mark.words for mark in MARKS if mark.role == "assistant"])
_LONGEST: Final = max([len(mark.words) for mark in MARKS])
_SPACE: Final = " \t\r\n"


class _Message(msgspec.Struct, gc=False):
    role: str
    content: Raw = Raw(b"")


class _Body(msgspec.Struct, gc=False):
    messages: list[_Message] = []


_BODY: Final = msgspec.json.Decoder(_Body)


def is_compacted(body: bytes) -> bool:
    """Whether a message of a body, which was read before, begins with a mark. Raises: msgspec.MsgspecError."""
    left = MAX_MARKED_BYTES
    for message in _BODY.decode(body).messages[:MAX_MARKED]:
        left -= len(memoryview(message.content))
        if left < 0:
            break
        is_answer = message.role == "assistant"
        if is_answer or message.role == "user":
            words = _ANSWER if is_answer else _USER
            if any(_begins(text, words) for text in texts_of(message.content)):
                return True
        if is_answer:
            break
    return False


def has_mark(text: str) -> bool:
    """Whether a text begins with a mark, of whichever role."""
    return _begins(text, _ANY)


def _begins(text: str, words: tuple[str, ...]) -> bool:
    return text[: 2 * _LONGEST].lstrip(_SPACE).startswith(words)
