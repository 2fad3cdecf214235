"""Translates settings of a request that chat has too, and refuses those that need stored state."""

from typing import Any, Final

import msgspec

from warmroute_proxy.dialects.raw_json import BadRequest, Members, list_at, object_at, text_at

COPIED: Final = (
    "temperature", "top_p", "stream", "metadata", "service_tier", "user", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention",
)  # fmt: skip
READ: Final = frozenset(
    {
        *COPIED, "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens",
        "text", "reasoning", "store", "include", "truncation", "stream_options", "background",
        "previous_response_id", "conversation", "prompt", "context_management",
        "client_metadata",  # names the sender, as Codex's headers do
        "max_tool_calls",  # limits calls of tools that OpenAI runs
        "prompt_cache_options",  # how long OpenAI keeps a cache
    }
)  # fmt: skip
_STORED: Final = {
    "previous_response_id": "nothing is stored here: send the whole conversation as input",
    "conversation": "nothing is stored here: send the whole conversation as input",
    "prompt": "nothing is stored here: send the prompt itself as instructions and input",
}
_CODES: Final = {"previous_response_id": "previous_response_not_found"}
"""Error codes by which clients know that they must send the whole conversation."""

UPDATE: Final = "configuration_update"  # the type of items that change settings

MAX_INCLUDED: Final = 64  # values of `include`; OpenAI defines eight
_decode_count: Final = msgspec.json.Decoder(int).decode
_TRUNCATION: Final = "truncation"
_FORMATS: Final = ("text", "json_object", "json_schema")
_NO_SUMMARY: Final = ("none", "off")  # VS Code writes "off"
_SUMMARIES: Final = ("auto", "concise", "detailed", *_NO_SUMMARY)


def settings(members: Members, dropped: set[str]) -> dict[str, Any]:
    """The settings in chat's terms; names of others are added to `dropped`. Raises: BadRequest."""
    _refuse_state(members)
    _note_unserved(members, dropped)
    chat: dict[str, Any] = {name: members[name] for name in COPIED if name in members}
    if "max_output_tokens" in members:
        chat["max_tokens"] = _count(members, "max_output_tokens")
    if _flag(members, "stream"):
        chat["stream_options"] = {"include_usage": True}
    if "parallel_tool_calls" in members:
        chat["parallel_tool_calls"] = _flag(members, "parallel_tool_calls")
    if "text" in members:
        chat |= _text(object_at(members["text"], "text"))
    if "reasoning" in members:
        chat |= _effort(object_at(members["reasoning"], "reasoning"))
    return chat


def updates_in(item: bytes) -> dict[str, bytes]:
    """The members of the request that a `configuration_update` changes for all later answers. The name `UPDATE` stands
    for those that cannot be read.
    """
    members, found = object_at(item, UPDATE), dict[str, bytes]()
    for name, read in (("reasoning", _effort), ("text", _text)):
        if name in members:
            try:
                read(object_at(members[name], UPDATE))
                found[name] = bytes(members[name])
            except BadRequest:
                found[UPDATE] = b""
    return found


def updated(updates: dict[str, bytes], dropped: set[str]) -> dict[str, Any]:
    """The settings that items have changed, in chat's terms; None for one that is no longer set. Updates that cannot be
    read are dropped.
    """
    chat: dict[str, Any] = {}
    if "reasoning" in updates:
        chat |= _effort(object_at(updates["reasoning"], UPDATE))
    if "text" in updates:
        text = object_at(updates["text"], UPDATE)
        chat |= _text(text)
        if "format" in text:
            chat.setdefault("response_format", None)
    if UPDATE in updates:
        dropped.add(UPDATE)
    return chat


def _refuse_state(members: Members) -> None:
    for name, instead in _STORED.items():
        if name in members:
            raise BadRequest(name, instead, _CODES.get(name, "invalid_value"))
    if "context_management" in members and list_at(members["context_management"], "context_management"):
        raise BadRequest(
            "context_management", "a conversation is summed up on request: end the input with a compaction_trigger"
        )
    if _flag(members, "background"):
        raise BadRequest("background", "answers are not computed in the background: leave it out")
    _flag(members, "store")  # only checked: nothing is stored for either value


def _note_unserved(members: Members, dropped: set[str]) -> None:
    if "include" in members:
        listed = list_at(members["include"], "include")
        if len(listed) > MAX_INCLUDED:
            raise BadRequest("include", f"has {len(listed)} items, at most {MAX_INCLUDED} are taken")
        for raw in listed:
            included = text_at({"include": raw}, "include", "")
            if included != "reasoning.encrypted_content":
                dropped.add(f"include.{included}")
    if _TRUNCATION in members and text_at(members, _TRUNCATION, "") != "disabled":
        dropped.add(_TRUNCATION)


def unlisted(members: Members) -> frozenset[str]:
    return frozenset(name for name in members if name not in READ)


def asks_summary(members: Members) -> bool:
    """Whether the answer should show reasoning as a summary. Raises: BadRequest."""
    if "reasoning" not in members:
        return False
    reasoning = object_at(members["reasoning"], "reasoning")
    asked = text_at(reasoning, "summary", "reasoning") if "summary" in reasoning else "none"
    if asked not in _SUMMARIES:
        raise BadRequest("reasoning.summary", f"must be one of {', '.join(_SUMMARIES)}")
    return asked not in _NO_SUMMARY


def _effort(reasoning: Members) -> dict[str, Any]:
    if "effort" not in reasoning:
        return {}
    text_at(reasoning, "effort", "reasoning")
    return {"reasoning_effort": reasoning["effort"]}


def _text(text: Members) -> dict[str, Any]:
    chat: dict[str, Any] = {}
    if "verbosity" in text:
        text_at(text, "verbosity", "text")
        chat["verbosity"] = text["verbosity"]
    if "format" in text:
        form = object_at(text["format"], "text.format")
        kind = text_at(form, "type", "text.format")
        if kind not in _FORMATS:
            raise BadRequest("text.format.type", f"must be one of {', '.join(_FORMATS)}")
        if kind == "json_schema":
            if "schema" not in form:
                raise BadRequest("text.format.schema", "is required")
            object_at(form["schema"], "text.format.schema")
            schema = {name: form[name] for name in ("name", "description", "schema", "strict") if name in form}
            chat["response_format"] = {"type": kind, "json_schema": schema}
        elif kind != "text":
            chat["response_format"] = {"type": kind}
    return chat


def _flag(members: Members, name: str) -> bool:
    raw = bytes(members.get(name, b"false"))
    if raw not in (b"true", b"false"):
        raise BadRequest(name, "must be true or false")
    return raw == b"true"


def _count(members: Members, name: str) -> int:
    try:
        count = _decode_count(members[name])
    except (msgspec.DecodeError, ValueError):
        count = 0
    if count < 1:
        raise BadRequest(name, "must be a whole number above 0")
    return count
