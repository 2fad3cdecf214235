"""Whether a prompt goes on from a summary of its history, by the mark of an agent program (`contract.compactions`).

Limits: the messages up to the first answer, `MAX_MARKED` of them and `MAX_MARKED_BYTES` in all. Of each text only the
beginning is compared.
"""

from typing import Final

import msgspec
from msgspec import Raw

from warmroute.contract.compactions import MARKS
from warmroute_proxy.core.prompt.parts import texts_of

MAX_MARKED: Final = 64
MAX_MARKED_BYTES: Final = 262_144

_USER: Final = tuple([mark.words for mark in MARKS if mark.role == "user"])
_ANSWER: Final = tuple([mark.words for mark in MARKS if mark.role == "assistant"])
_LONGEST: Final = max([len(mark.words) for mark in MARKS])
_SPACE: Final = " \t\r\n"
_RAWS: Final = msgspec.json.Decoder(list[Raw])


class _Message(msgspec.Struct, gc=False):
    role: str
    content: Raw = Raw(b"")


_MESSAGE: Final = msgspec.json.Decoder(_Message)


def is_compacted(messages: Raw) -> bool:
    """Whether a mark stands in messages that were read before. Raises: msgspec.MsgspecError."""
    left = MAX_MARKED_BYTES
    for raw in _RAWS.decode(messages)[:MAX_MARKED]:
        left -= len(memoryview(raw))
        if left < 0:
            break
        message = _MESSAGE.decode(raw)
        is_answer = message.role == "assistant"
        if is_answer or message.role == "user":
            words = _ANSWER if is_answer else _USER
            if any(_begins(text, words) for text in texts_of(message.content)):
                return True
        if is_answer:
            break
    return False


def _begins(text: str, words: tuple[str, ...]) -> bool:
    return text[: 2 * _LONGEST].lstrip(_SPACE).startswith(words)
