"""Makes message content of chat for several dialects: a lone text part becomes a plain string, images are checked."""

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import BadRequest, ChatPart, Members, encode, is_object, object_at, text_in
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.rules import reminded
from warmroute_proxy.normalising.texts import Texts

_T = TypeVar("_T")
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_STANDARD: Final = {ord("-"): "+", ord("_"): "/", ord("\n"): None, ord("\r"): None, ord(" "): None}
IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp", "image/jpg")  # "image/jpg" is often sent
_BEGINNINGS: Final = {"iVBORw": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""Of images in base64."""

_OTHER_BEGINNINGS: Final = (b"<", b"\n<", b"\r\n<", b"\xef\xbb\xbf<", b"{", b"%PDF", b"version http")
"""Of pages, of JSON, of a PDF, and of the pointer that Git LFS leaves in place of a file."""

_TYPE_NAMES: Final = ("media_type", "mimeType", "mediaType", "mime_type")
_OTHER_BRANDS: Final = frozenset({b"ftyphei", b"ftyphev", b"ftypmif"})
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)
_NULL: Final = 0x6E
_WINDOW_CHARS: Final = 1_048_576
_decode_text: Final = msgspec.json.Decoder(str).decode


def content_of(pieces: list[ChatPart]) -> Any:
    """The content of a chat message. A lone text part becomes a plain string, so both forms give the same bytes."""
    if len(pieces) == 1 and pieces[0]["type"] == "text":
        return pieces[0]["text"]
    return pieces


def reminder(parts: list[ChatPart]) -> str:
    """A system message as text for a user's message: some templates take system messages only at the beginning."""
    texts = "\n".join([_decode_text(piece["text"]) for piece in parts])
    return reminded(texts)


def assistant_message(texts: list[ChatPart], thought: str, calls: list[Any]) -> ChatPart:
    """A message of the model: its thoughts, if any, its texts and its calls."""
    message: ChatPart = {"role": "assistant"}
    if thought:
        message["reasoning_content"] = thought
    message["content"] = content_of(texts) if texts else None if calls else ""
    if calls:
        message["tool_calls"] = calls
    return message


def cleaned(pieces: list[ChatPart], role: str, texts: Texts) -> list[ChatPart]:
    """The parts of a message after the normalising rules. A text of which the rules leave nothing is left out."""
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
    """Whether a member is present and not null."""
    return bool(raw) and memoryview(raw)[0] != _NULL


def is_base64(data: str) -> bool:
    """Whether a text is base64, with padding. The check goes window by window, without a copy of the whole text."""
    if not data or len(data) % 4:
        return False
    end = len(data) - (2 if data.endswith("==") else 1 if data.endswith("=") else 0)
    for at in range(0, end, _WINDOW_CHARS):
        window = data[at : min(at + _WINDOW_CHARS, end)]
        if not window.isascii() or window.encode().translate(None, _ALPHABET):
            return False
    return True


def as_base64(data: str) -> str | None:
    """Standard base64 on one line with padding, as engines read it; None if `data` is not base64 of any form."""
    if is_base64(data):
        return data  # the usual case
    bare = data.translate(_STANDARD).rstrip("=")
    whole = bare + "=" * (-len(bare) % 4)
    return whole if len(bare) % 4 != 1 and is_base64(whole) else None


def data_image(media_type: str, data: str, kind: str = "") -> ChatPart | None:
    """An image part from data in the request, which may be a data URL; None if engines could not read it. Without a
    type, the data's beginning tells it, unless `kind`, the type of the client's part, is that of other media.
    """
    if data[:5].lower() == "data:":
        head, _, data = data[5:].partition(",")
        media_type = media_type or head.partition(";")[0]
    if not media_type and (not kind or "image" in kind):
        media_type = next((found for begins, found in _BEGINNINGS.items() if data.startswith(begins)), "")
    found = as_base64(data) if media_type.lower() in IMAGE_TYPES else None
    return None if found is None or _is_other(found) else image_at(f"data:{media_type};base64,{found}")


def foreign_image(piece: Members) -> ChatPart | None:
    """An image in the shape of any API: Anthropic's `source`, OpenAI's `image_url`, or MCP's `data`. None if `piece`
    holds no image that engines could read.
    """
    held = piece
    for name in ("source", "image_url"):
        inner = piece.get(name)
        if inner is not None:
            held = object_at(inner, name) if is_object(inner) else {"url": inner}
    data, kind = text_in(held, "data"), text_in(piece, "type")
    if data:
        return data_image(next(filter(None, [text_in(held, name) for name in _TYPE_NAMES]), ""), data, kind)
    url = text_in(held, "url") if "image" in kind else ""
    return given_image(url, "") if is_address(url) or url[:5].lower() == "data:" else None


def _is_other(data: str) -> bool:
    """Whether the data is surely none of `IMAGE_TYPES`. Clients take the type from a file's name, but a file `.png` may
    hold the page of an error, and a photo of a phone may be HEIC. WAV and AVI begin as WebP does.
    """
    head = base64.b64decode(data[:16])
    is_riff = head.startswith(b"RIFF") and head[8:] != b"WEBP"
    return is_riff or head.startswith(_OTHER_BEGINNINGS) or head[4:11] in _OTHER_BRANDS


def image_at(url: str | Raw) -> ChatPart:
    return {"type": "image_url", "image_url": {"url": url}}


def text_of(text: str) -> ChatPart:
    """A text part. Its text is encoded as JSON, like texts that are copied from a request."""
    return {"type": "text", "text": Raw(encode(text))}


def is_address(url: str) -> bool:
    return url[:8].lower().startswith(("https://", "http://"))


def given_image(url: str, path: str) -> ChatPart | None:
    """An image part from a client's address or data URL; None if engines could not read its data.

    Raises: BadRequest, if `url` is neither. The check of chat decides for all APIs which addresses are allowed.
    """
    if is_address(url):
        return image_at(url)
    if not url[:5].lower().startswith("data:"):
        raise BadRequest(path, "must be an address or data:image/...;base64,...")
    head, comma, data = url[5:].partition(",")
    media_type, _, encoding = head.partition(";")
    return data_image(media_type, data) if comma and encoding.endswith("base64") else None


def data_text(data: str) -> str | None:
    """The text of a file in the request, given as base64 or as a data URL; None if it is not text."""
    found = as_base64(data.partition(",")[2] if data[:5].lower() == "data:" else data)
    try:
        text = "" if found is None else base64.b64decode(found).decode()
    except UnicodeDecodeError:
        return None
    return text if text and "\0" not in text and not text.startswith("%PDF-") else None


def readable(decode: Callable[[bytes], _T], raw: Raw, work: TranslationWork) -> _T:
    """Decode an object of a history, without members of a wrong type. JSON that is not an object counts as empty."""
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
    """The members whose types fit. Nested objects are filtered likewise, up to `levels` deep."""
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
