"""What contents of several dialects have in common: one text is a plain text, and images are checked."""

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import BadRequest, ChatPart, Members, encode, is_object, object_at
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.rules import reminded
from warmroute_proxy.normalising.texts import Texts

_T = TypeVar("_T")
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_STANDARD: Final = {ord("-"): "+", ord("_"): "/", ord("\n"): None, ord("\r"): None, ord(" "): None}
IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp", "image/jpg")  # the last one is often sent
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)
_NULL: Final = 0x6E
_WINDOW_CHARS: Final = 1_048_576
_decode_text: Final = msgspec.json.Decoder(str).decode


def content_of(pieces: list[ChatPart]) -> Any:
    """The content of a chat message: one text is a plain text, so that it is the same with and without a part."""
    if len(pieces) == 1 and pieces[0]["type"] == "text":
        return pieces[0]["text"]
    return pieces


def reminder(parts: list[ChatPart]) -> str:
    """A system message as a user's, for models whose template has system messages at the beginning alone."""
    texts = "\n".join([_decode_text(piece["text"]) for piece in parts])
    return reminded(texts)


def assistant_message(texts: list[ChatPart], thought: str, calls: list[Any]) -> ChatPart:
    """A message of the model: what it has thought, if that is given, its texts, and the calls that it made."""
    message: ChatPart = {"role": "assistant"}
    if thought:
        message["reasoning_content"] = thought
    message["content"] = content_of(texts) if texts else None if calls else ""
    if calls:
        message["tool_calls"] = calls
    return message


def cleaned(pieces: list[ChatPart], role: str, texts: Texts) -> list[ChatPart]:
    """The pieces of a message without what the rules take out of its texts."""
    found = []
    for piece in pieces:
        if piece["type"] == "text":
            text = texts.clean(piece["text"], role)
            if text is None:
                continue
            piece["text"] = text
        found.append(piece)
    return found


def is_given(raw: Raw) -> bool:
    """Whether a member is there, and not null."""
    return bool(raw) and memoryview(raw)[0] != _NULL


def is_base64(data: str) -> bool:
    """Whether a text is base64, with padding. It is looked at window by window, and not copied whole."""
    if not data or len(data) % 4:
        return False
    end = len(data) - (2 if data.endswith("==") else 1 if data.endswith("=") else 0)
    for at in range(0, end, _WINDOW_CHARS):
        window = data[at : min(at + _WINDOW_CHARS, end)]
        if not window.isascii() or window.encode().translate(None, _ALPHABET):
            return False
    return True


def as_base64(data: str) -> str | None:
    """Base64 in either alphabet, broken into lines or not, with padding or without, as engines read it; else None."""
    if is_base64(data):
        return data  # as mostly
    bare = data.translate(_STANDARD).rstrip("=")
    whole = bare + "=" * (-len(bare) % 4)
    return whole if len(bare) % 4 != 1 and is_base64(whole) else None


def data_image(media_type: str, data: str) -> ChatPart | None:
    """An image that is in the request; None if engines could not read it."""
    found = as_base64(data) if media_type.lower() in IMAGE_TYPES else None
    return None if found is None else image_at(f"data:{media_type};base64,{found}")


def image_at(url: str | Raw) -> ChatPart:
    return {"type": "image_url", "image_url": {"url": url}}


def text_of(text: str) -> ChatPart:
    """A text as a part, in JSON like those that are copied."""
    return {"type": "text", "text": Raw(encode(text))}


def is_address(url: str) -> bool:
    """Whether something may be fetched at it."""
    return url[:8].lower().startswith(("https://", "http://"))


def given_image(url: str, path: str) -> ChatPart | None:
    """An image by what a client has for its address; None if it is one that engines could not read.

    Raises: BadRequest, if it is not an address. Which addresses may be is decided for all APIs by that of chat.
    """
    if is_address(url):
        return image_at(url)
    if not url[:5].lower().startswith("data:"):
        raise BadRequest(path, "must be an address or data:image/...;base64,...")
    head, comma, data = url[5:].partition(",")
    media_type, _, encoding = head.partition(";")
    return data_image(media_type, data) if comma and encoding.endswith("base64") else None


def data_text(data: str) -> str | None:
    """The text of a file that is in the request, in base64 or as an address with it; None if it is not text."""
    found = as_base64(data.partition(",")[2] if data[:5].lower() == "data:" else data)
    try:
        text = "" if found is None else base64.b64decode(found).decode()
    except UnicodeDecodeError:
        return None
    return text if text and "\0" not in text and not text.startswith("%PDF-") else None


def readable(decode: Callable[[bytes], _T], raw: Raw, work: TranslationWork) -> _T:
    """An object of a history, without the members that have another type; an empty one in the place of other JSON."""
    try:
        return decode(raw)
    except _PROBLEMS:
        pass

    def fits(members: Members) -> bool:
        try:
            decode(encode(members))
        except _PROBLEMS:
            return False
        return True

    return decode(encode(_fitting(raw, fits, work, levels=1) if is_object(raw) else {}))


def _fitting(raw: Raw, fits: Callable[[Members], bool], work: TranslationWork, *, levels: int) -> Members:
    """The members that fit; those of an object in it likewise, `levels` deep."""
    found: Members = {}
    members = object_at(raw, "")
    work.take(len(members))
    for name, value in members.items():
        left = value
        if levels and is_object(value) and not fits({name: value}):
            left = Raw(encode(_fitting(value, partial(_fits_in, fits, name), work, levels=levels - 1)))
        if fits({name: left}):
            found[name] = left
    return found


def _fits_in(fits: Callable[[Members], bool], name: str, members: Members) -> bool:
    return fits({name: Raw(encode(members))})
