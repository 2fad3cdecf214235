"""Writes the messages of a chat without what its server does not take, in the forms that it demands (`unsupported`).

A message changes in the same way in each turn, so the beginning of the conversation stays the same.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_hexdigest

from warmroute_proxy.dialects.content import content_of, is_given, reminder, text_of
from warmroute_proxy.dialects.foreign import not_shown
from warmroute_proxy.dialects.raw_json import Members, encode, is_list, is_object, object_at, text_in
from warmroute_proxy.dialects.unsupported import (
    BETWEEN,
    CALL_IDS,
    CONTENTS,
    EMPTY,
    FUNCTIONS,
    IMAGES,
    IN_CALL,
    IN_MESSAGE,
    LAST_USER,
    LATE_SYSTEM,
    NAMED_RESULTS,
    OF_MESSAGES,
    OTHER_TEXTS,
    QUERY,
    RESULTS,
    ROLE,
    SIGNATURES,
    TEXTS,
    THOUGHTS,
    TURNS,
    USER_IMAGES,
    USERS_NAMES,
    is_of_messages,
)

_NO_THOUGHT: Final = Raw(b'" "')  # DeepSeek refuses an empty text
_CONTINUE: Final = {"role": Raw(b'"user"'), "content": Raw(b'"Continue."')}
_BETWEEN: Final = {"role": Raw(b'"assistant"'), "content": Raw(b'"I have the results."')}
_NO_RESULT: Final = "The call has no result: it was interrupted."
_NO_SIGNATURE: Final = Raw(b'{"google":{"thought_signature":"skip_thought_signature_validator"}}')
"""Google's placeholder for calls of other models: ai.google.dev/gemini-api/docs/thought-signatures."""

_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_NOTHING: Final = (b"", b"null", b'""', b"[]")
_CUSTOM: Final = b'"custom"'
_CALLS: Final = frozenset({CALL_IDS, SIGNATURES, FUNCTIONS})
_decode_messages: Final = msgspec.json.Decoder(list[Members]).decode
_decode_calls: Final = msgspec.json.Decoder(list[Members] | None).decode
_decode_parts: Final = msgspec.json.Decoder(list[Members]).decode
_decode_text: Final = msgspec.json.Decoder(str | None).decode
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError, LookupError)


def fitted(messages: bytes, unsupported: frozenset[str]) -> bytes | None:
    """The messages of a chat as the server takes them; None if they stay as they are."""
    names = [name for name in unsupported if is_of_messages(name) and (name != FUNCTIONS or _CUSTOM in messages)]
    if not names:
        return None
    calls = frozenset([name.removeprefix(IN_CALL) for name in names if name.startswith(IN_CALL)]) - {"id"}
    members = frozenset([name.removeprefix(IN_MESSAGE) for name in names]) & OF_MESSAGES
    try:
        found = [_fitted(message, members, calls, unsupported) for message in _decode_messages(messages)]
        if EMPTY in unsupported:
            found = [message for message in found if not _is_empty(message)]
        if RESULTS in unsupported:
            found = _with_results(found)
        if NAMED_RESULTS in unsupported:
            found = _with_names(found)
        if USER_IMAGES in unsupported:
            found = _with_images_of_users(found)
        if LATE_SYSTEM in unsupported:
            found = [*found[:1], *[_reminding(message) for message in found[1:]]]
        if BETWEEN in unsupported or TURNS in unsupported:
            found = _answered(found)
        if TURNS in unsupported:
            found = _in_turns(found)
        lacks_user = LAST_USER in unsupported and text_in(found[-1], "role") == "assistant"
        if lacks_user or (QUERY in unsupported and not any(map(_is_query, found))):
            found.append(_CONTINUE)
    except _PROBLEMS:
        return None
    return encode(found)


def _fitted(message: Members, members: frozenset[str], calls: frozenset[str], unsupported: frozenset[str]) -> Members:
    """One message; the forms that concern several messages are left to `fitted`."""
    left = {name: value for name, value in message.items() if name not in members}
    role, content = text_in(left, "role"), left.get("content")
    if role == "developer" and ROLE in unsupported:
        left["role"] = Raw(b'"system"')
    if role == "assistant" and THOUGHTS in unsupported and not _has_thoughts(left):
        left["reasoning_content"] = _NO_THOUGHT
    as_text = TEXTS in unsupported or (OTHER_TEXTS in unsupported and role != "user")
    if content is not None and is_list(content) and (as_text or IMAGES in unsupported):
        left["content"] = _shown(content, as_text=as_text)
    if USERS_NAMES in unsupported and role != "user":
        left.pop("name", None)
    if CONTENTS in unsupported and bytes(left.get("content", b"null")) == b"null":
        left["content"] = Raw(b'""')
    if CALL_IDS in unsupported and "tool_call_id" in left:
        left["tool_call_id"] = _short_id(left["tool_call_id"])
    if "tool_calls" in left:
        if EMPTY in unsupported and bytes(left["tool_calls"]) in _NOTHING:
            del left["tool_calls"]
        elif calls or not unsupported.isdisjoint(_CALLS):
            left["tool_calls"] = Raw(encode(_calls(left["tool_calls"], calls, unsupported)))
    return left


def _shown(content: Raw, *, as_text: bool) -> Raw:
    """A content without images; as one text, if the server takes no list."""
    pieces = _decode_parts(content)
    if as_text:
        texts = [text_in(piece, "text") if "text" in piece else not_shown(_kind(piece)) for piece in pieces]
        return Raw(encode("\n".join(texts)))
    return Raw(encode([text_of(not_shown("image")) if "image_url" in piece else piece for piece in pieces]))


def _kind(piece: Members) -> str:
    return "image" if "image_url" in piece else text_in(piece, "type") or "part"


def _has_thoughts(message: Members) -> bool:
    return any(bytes(message.get(name, b"")) not in _NOTHING for name in ("reasoning_content", "reasoning"))


def _calls(raw: Raw, without: frozenset[str], unsupported: frozenset[str]) -> list[Members]:
    found = []
    for call in _decode_calls(raw) or ():
        left = {name: value for name, value in call.items() if name not in without}
        if CALL_IDS in unsupported and "id" in left:
            left["id"] = _short_id(left["id"])
        if FUNCTIONS in unsupported:
            left = _as_function({name: value for name, value in left.items() if is_given(value)})
        if SIGNATURES in unsupported and "extra_content" not in left:
            left["extra_content"] = _NO_SIGNATURE
        found.append(left)
    return found


def _as_function(call: Members) -> Members:
    """The call of a custom tool as that of a function."""
    if "function" in call or "custom" not in call or not is_object(call["custom"]):
        return call
    custom = object_at(call["custom"], "")
    function = {"name": text_in(custom, "name"), "arguments": encode({"input": text_in(custom, "input")}).decode()}
    left = {name: value for name, value in call.items() if name != "custom"}
    return {**left, "type": Raw(b'"function"'), "function": Raw(encode(function))}


def _short_id(raw: Raw) -> Raw:
    """An id of nine letters and digits: the same for the call and its result."""
    found = _decode_text(raw)
    return raw if found is None or _NINE.fullmatch(found) else Raw(encode(xxh3_64_hexdigest(found.encode())[:9]))


def _is_empty(message: Members) -> bool:
    """Whether a message says nothing. The result of a call may be empty."""
    return (
        text_in(message, "role") != "tool"
        and bytes(message.get("content", b"")) in _NOTHING
        and bytes(message.get("tool_calls", b"")) in _NOTHING
    )


def _is_query(message: Members) -> bool:
    return text_in(message, "role") == "user" and not _is_empty(message)


def _with_results(messages: Sequence[Members]) -> list[Members]:
    """The messages with a result behind each call. A result whose call is missing becomes a text of the user."""
    found: list[Members] = []
    waiting: dict[str, None] = {}  # the ids of calls without a result, in their order
    orphans: list[Members] = []  # results without a call, which stand behind the other results
    for message in messages:
        if text_in(message, "role") == "tool":
            call_id = text_in(message, "tool_call_id")
            if call_id in waiting:
                del waiting[call_id]
                found.append(message)
                continue
            orphans.append({"role": Raw(b'"user"'), "content": message.get("content", Raw(b'""'))})
            continue
        found += [*_missing(waiting), *orphans, message]
        orphans.clear()
        if "tool_calls" in message:
            waiting = dict.fromkeys([text_in(call, "id") for call in _decode_calls(message["tool_calls"]) or ()])
    return [*found, *_missing(waiting), *orphans]


def _missing(waiting: dict[str, None]) -> list[Members]:
    """A result for each call that waits for one. Then none waits any more."""
    results: list[Any] = [{"role": "tool", "tool_call_id": call_id, "content": _NO_RESULT} for call_id in waiting]
    waiting.clear()
    return results


def _with_names(messages: Sequence[Members]) -> list[Members]:
    """The messages with the name of the function in each result."""
    names: dict[str, Raw] = {}
    found: list[Members] = []
    for message in messages:
        for call in _decode_calls(message.get("tool_calls", b"null")) or ():
            if is_object(call.get("function", Raw(b"null"))):
                names[text_in(call, "id")] = object_at(call["function"], "").get("name", Raw(b'""'))
        name = names.get(text_in(message, "tool_call_id"))
        found.append(message if name is None or "name" in message else {**message, "name": name})
    return found


def _reminding(message: Members) -> Members:
    """A message behind the first: that of the system as a reminder in a user's message."""
    if text_in(message, "role") not in ("system", "developer"):
        return message
    pieces = _pieces(message)
    text = {"type": "text", "text": reminder([piece for piece in pieces if "text" in piece])}
    shown = [text, *[piece for piece in pieces if "text" not in piece]]
    return {"role": Raw(b'"user"'), "content": Raw(encode(content_of(shown)))}


def _answered(messages: Sequence[Members]) -> list[Members]:
    """The messages with one of the model between the results of its calls and what the user says next."""
    found: list[Members] = []
    for message in messages:
        if found and text_in(message, "role") == "user" and text_in(found[-1], "role") == "tool":
            found.append(_BETWEEN)
        found.append(message)
    return found


def _in_turns(messages: Sequence[Members]) -> list[Members]:
    """The messages, with one message for all that follow each other in one role. Results of calls stay apart."""
    found: list[Members] = []
    for message in messages:
        role = text_in(message, "role")
        if found and role in ("user", "assistant") and role == text_in(found[-1], "role"):
            found[-1] = _merged(found[-1], message)
        else:
            found.append(message)
    return found


def _merged(before: Members, message: Members) -> Members:
    pieces = [*_pieces(before), *_pieces(message)]
    merged = {**before, **message, "content": Raw(encode(content_of(pieces) if pieces else ""))}
    calls = [each for each in (before, message) if "tool_calls" in each]
    if calls:
        merged["tool_calls"] = Raw(encode([call for each in calls for call in _decode_calls(each["tool_calls"]) or ()]))
    return merged


def _pieces(message: Members) -> list[Any]:
    """The content of a message as a list of parts."""
    content = message.get("content", Raw(b"null"))
    if is_list(content):
        return list(_decode_parts(content))
    return [{"type": "text", "text": content}] if bytes(content) not in _NOTHING else []


def _with_images_of_users(messages: Sequence[Members]) -> list[Members]:
    """The messages with the images of results and answers in a user's message behind them."""
    found: list[Members] = []
    images: list[Members] = []
    for message in messages:
        role, content = text_in(message, "role"), message.get("content")
        if images and role != "tool":
            found.append({"role": Raw(b'"user"'), "content": Raw(encode(images))})
            images = []
        if role != "user" and content is not None and is_list(content):
            pieces = _decode_parts(content)
            here = [piece for piece in pieces if "image_url" in piece]
            if here:
                images += here
                left = [piece for piece in pieces if "image_url" not in piece]
                found.append({**message, "content": Raw(encode(left or not_shown("image")))})
                continue
        found.append(message)
    return [*found, {"role": Raw(b'"user"'), "content": Raw(encode(images))}] if images else found
