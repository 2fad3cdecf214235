"""The rule `move-volatile`: lines that change stay as they were first; the newest user message has the new ones.

What was added to a user message is remembered by the digest of the message, and added again whenever it is sent: the
client knows nothing of it.
"""

from collections.abc import Mapping
from typing import Any, Final

from warmroute.guard.canonical import digest_of_message
from warmroute.guard.compare import Break
from warmroute.guard.memory import Reading, Remembered
from warmroute.guard.prompt import Section, role_of, text_of

MAX_LINES: Final = 20
"""More lines than these are not volatile lines."""

_HEADING: Final = "Now:"

Body = Mapping[str, Any]


def move(body: Body, reading: Reading, broken: Break, remembered: Remembered) -> Body | None:
    """The system part as it was sent, with its new lines at the end of the newest user message."""
    assert reading.before is not None
    sent, now = reading.before.system, reading.prompt.system
    for at in range(min(len(sent), len(now))):
        if now.where(at) == broken.where and sent.piece(at) is not None:
            old, new = text_of(sent.piece(at)), text_of(now.piece(at))
            known = set(old.split("\n"))
            lines = [line for line in new.split("\n") if line not in known and line.strip()]
            if len(lines) > MAX_LINES:
                return None
            found = with_text(body, now, at, old)
            return (
                found
                if found is None or not lines
                else _with_news(found, reading, "\n".join([_HEADING, *lines]), remembered)
            )
    return None


def moved_again(body: Body, remembered: Remembered) -> Body:
    """The request with all that was added to its user messages before."""
    field = _field(body)
    items = body.get(field)
    if not isinstance(items, list):
        return body
    made = [
        _appended(item, remembered.moved[digest])
        if role_of(item) == "user" and (digest := digest_of_message(item).value) in remembered.moved
        else item
        for item in items
    ]
    return body if made == items else {**body, field: made}


def with_text(body: Body, section: Section, at: int, text: str) -> Body | None:
    """The request with another text in one part, which must have one text; None where it has not."""
    field = section.name
    if isinstance(body.get(field), str):
        return {**body, field: text}
    outer = body.get(field)
    items = outer.get("parts") if isinstance(outer, dict) else outer
    if not isinstance(items, list) or section.start + at >= len(items):
        return None
    piece = _part_with_text(items[section.start + at], text)
    if piece is None:
        return None
    changed = [*items[: section.start + at], piece, *items[section.start + at + 1 :]]
    return {**body, field: {**outer, "parts": changed} if isinstance(outer, dict) else changed}


def _part_with_text(piece: Any, text: str) -> Any:
    if isinstance(piece, str):
        return text
    if not isinstance(piece, dict):
        return None
    for name in ("text", "content"):
        if isinstance(piece.get(name), str):
            return {**piece, name: text}
    blocks = piece.get("content")
    if isinstance(blocks, list) and len(blocks) == 1 and isinstance(blocks[0], dict) and "text" in blocks[0]:
        return {**piece, "content": [{**blocks[0], "text": text}]}
    return None


def _with_news(body: Body, reading: Reading, text: str, remembered: Remembered) -> Body:
    """The text at the end of the newest user message, if that was not sent before; else nothing is told."""
    assert reading.before is not None
    field = _field(body)
    items = body.get(field)
    if not isinstance(items, list) or not items or role_of(items[-1]) != "user":
        return body
    digest = digest_of_message(items[-1]).value
    if digest in reading.before.messages.digests:
        return body
    remembered.note_moved(digest, text)
    return {**body, field: [*items[:-1], _appended(items[-1], text)]}


def _appended(message: Any, text: str) -> Any:
    for name in ("content", "parts"):
        inner = message.get(name)
        if isinstance(inner, str):
            return {**message, name: f"{inner}\n\n{text}"}
        if isinstance(inner, list):
            kind = next((piece.get("type") for piece in inner if isinstance(piece, dict) and "text" in piece), "text")
            block = {"text": text} if name == "parts" else {"type": kind or "text", "text": text}
            return {**message, name: [*inner, block]}
    return message


def _field(body: Body) -> str:
    return next((name for name in ("messages", "input", "contents") if name in body), "messages")
