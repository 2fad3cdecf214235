"""Reads what a relay needs from chat and text completions, whatever the style of the server's JSON.

Members are found by their names and types, never by bytes, so spaces, order, missing members and NaN make no
difference. Texts stay as they stand in JSON, with quotes and escapes.

Never compile this module: msgspec decodes by annotations, and mypyc drops annotations that are not a single name.
"""

import json
from typing import Any, Final

import msgspec
from msgspec import Raw

FAILED: Final = frozenset({"error", "network_error", "insufficient_system_resource"})
"""Values of `finish_reason`, in small letters, for an answer that ended with an error; the last two are Zhipu's and
DeepSeek's."""

ONE_TOKEN_BYTES: Final = 32
BYTES_PER_TOKEN: Final = 8
"""A text of up to `ONE_TOKEN_BYTES` counts as one token, a longer text as one token per `BYTES_PER_TOKEN` bytes. Most
tokens are shorter, so the count is a lower bound."""

_NOTHING: Final = frozenset({b"null", b'""', b"[]", b"{}", b"[ ]", b"{ }", b"false"})
_NOTHING_BYTES: Final = 5  # the longest of `_NOTHING`
_NULL: Final = 0x6E
_QUOTE: Final = 0x22
_QUOTES: Final = 2
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_TEXTS: Final = ("content", "text", "refusal")
_CALLS: Final = ("tool_calls", "function_call")
_THOUGHTS: Final = ("reasoning_content", "reasoning")  # SGLang's name, and vLLM's
_OTHER_TEXTS: Final = frozenset(
    {
        *_TEXTS, *_THOUGHTS, "thinking", "thought", "thoughts", "summary", "arguments", "input", "output",
        "output_text", "response", "completion", "transcript", "generated_text", "token",
    }
)  # fmt: skip
"""Names of members that hold text, at any depth inside members that this module does not know."""
_OTHER_THOUGHTS: Final = ("reason", "think", "thought")
"""A member whose name begins with one of these holds thoughts. Several members may hold the same thoughts, so only the
member with the most bytes counts.
"""
_NESTED: Final = frozenset({0x5B, 0x7B})


class _Function(msgspec.Struct, gc=False):
    name: Raw = Raw()
    arguments: Raw = Raw()


class _Custom(msgspec.Struct, gc=False):
    input: Raw = Raw()


class _Call(msgspec.Struct, gc=False):
    id: Raw = Raw()
    function: _Function | None = None
    custom: _Custom | None = None


ABSENT: Final = Raw(b"")


class ChoiceView(msgspec.Struct, gc=False):
    """A choice: in a chunk of a chat it has a `delta`, in a whole chat a `message`, in a completion a `text`."""

    index: Raw = ABSENT
    delta: dict[str, Raw] | None = None
    message: dict[str, Raw] | None = None
    text: Raw = ABSENT
    finish_reason: str | None = None
    usage: Raw = ABSENT
    error: Raw = ABSENT

    def outputs(self) -> dict[str, Raw]:
        """The members that hold output of the model, by name."""
        given = self.delta or self.message
        if not given:
            return {"text": self.text} if is_filled(self.text) else {}
        return {
            name: raw
            for name, raw in given.items()
            if name != "role" and (len(memoryview(raw)) > _NOTHING_BYTES or is_filled(raw))
        }

    def fault(self) -> Any:
        """The error that ended the choice; None without an error."""
        if self.error is not ABSENT and is_filled(self.error):
            return decoded(self.error)
        has_failed = (self.finish_reason or "").lower() in FAILED
        return "the engine ended its answer with an error" if has_failed else None


class _Groq(msgspec.Struct, gc=False):
    usage: Raw = ABSENT


class AnswerView(msgspec.Struct, gc=False):
    """A chunk, or a whole answer."""

    choices: list[ChoiceView] | None = None
    usage: Raw = ABSENT
    sglext: Raw = ABSENT
    error: Raw = ABSENT
    object: str | None = None
    x_groq: _Groq | None = None

    def reported(self) -> dict[str, Any] | None:
        """The usage. Most servers write it at the top level, Moonshot in the choice, Groq in `x_groq`."""
        if self.usage is not ABSENT and memoryview(self.usage)[0] != _NULL:
            return as_object(self.usage)
        if self.choices and self.choices[0].usage is not ABSENT:
            return as_object(self.choices[0].usage)
        return None if self.x_groq is None else as_object(self.x_groq.usage)

    def fault(self) -> Any:
        """The error in the event; True if the whole event is an error; None without an error."""
        if self.object == "error":
            return True
        if self.error is not ABSENT and is_filled(self.error):
            return decoded(self.error)
        for choice in self.choices or ():
            if (fault := choice.fault()) is not None:
                return fault
        return None


_view: Final = msgspec.json.Decoder(AnswerView).decode
_choices: Final = msgspec.json.Decoder(list[ChoiceView]).decode
_calls: Final = msgspec.json.Decoder(list[_Call]).decode
_function: Final = msgspec.json.Decoder(_Function).decode
_any: Final = msgspec.json.Decoder().decode
_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_elements: Final = msgspec.json.Decoder(list[Raw]).decode


def is_filled(raw: Raw) -> bool:
    size = len(memoryview(raw))
    return size > _NOTHING_BYTES or (size > 0 and bytes(raw) not in _NOTHING)


def decoded(raw: Raw | bytes) -> Any:
    """The decoded JSON value; if msgspec cannot read the bytes, the bytes as a text."""
    try:
        return _any(raw)
    except _UNREADABLE:
        return str(bytes(raw), "utf-8", "replace")


def as_object(raw: Raw) -> dict[str, Any] | None:
    """The value as an object; None if it is not an object."""
    if raw is ABSENT or memoryview(raw)[0] == _NULL:
        return None
    try:
        return _object(raw)
    except _UNREADABLE:
        return None


def read_view(raw: bytes) -> AnswerView | None:
    """A chunk or an answer; None if it is not a JSON object. A `delta` or `message` of a wrong type becomes content."""
    try:
        return _view(raw)
    except _UNREADABLE:
        pass
    try:
        found = json.loads(raw, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list) and found:  # Google writes an error as a list of one object
        found = found[0]
    if not isinstance(found, dict):
        return None
    choices = found.get("choices")
    choices = list(choices.values()) if isinstance(choices, dict) else choices
    sound = [_sound(choice) for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    if not isinstance(found.get("x_groq"), dict):
        found.pop("x_groq", None)
    if not isinstance(found.get("object"), str):
        found.pop("object", None)
    return _view(json.dumps({**found, "choices": sound}))


def without_usage(raw: bytes) -> bytes:
    """A chunk that `read_view` can read, without its usage, wherever it states that. All else in it stays as it is."""
    try:
        chunk: dict[str, Any] = _bare(raw)
        chunk["choices"] = [_bare(each) for each in _elements(chunk["choices"])]
        if "x_groq" in chunk:
            chunk["x_groq"] = _bare(chunk["x_groq"])
        return msgspec.json.encode(chunk)
    except _UNREADABLE:
        pass
    found = json.loads(raw, parse_constant=_no_number)
    chunk = found[0] if isinstance(found, list) else found
    choices = chunk["choices"]
    for each in (chunk, chunk.get("x_groq"), *(choices.values() if isinstance(choices, dict) else choices)):
        if isinstance(each, dict):
            each.pop("usage", None)
    return json.dumps(chunk).encode()


def _bare(raw: Raw | bytes) -> dict[str, Raw]:
    members = _members(raw)
    members.pop("usage", None)
    return members


def read_choices(raw: Raw | bytes) -> list[ChoiceView]:
    """The choices of a whole answer; empty if they are not a list."""
    try:
        return _choices(raw)
    except _UNREADABLE:
        found = read_view(b'{"choices":%b}' % bytes(raw))
        return (found.choices if found is not None else None) or []


def _no_number(_name: str) -> None:
    """Read NaN and infinities, which Python writes into JSON, as null."""


def _sound(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice whose members have the right types: a `delta` or `message` of a wrong type becomes content."""
    reason = choice.get("finish_reason")
    if reason is not None and not isinstance(reason, str):
        choice = {**choice, "finish_reason": str(reason)}
    odd = {
        name: {"content": choice[name]} for name in ("delta", "message") if not isinstance(choice.get(name, {}), dict)
    }
    return {**choice, **odd}


def tokens_at_least(output: dict[str, Raw]) -> int:
    """A lower bound of the tokens that the model generated for this output."""
    if not output:
        return 0
    if len(output) == 1 and "content" in output:
        size = len(memoryview(output["content"]))
        return 1 if size <= ONE_TOKEN_BYTES + _QUOTES else size // BYTES_PER_TOKEN
    size = thoughts = 0
    for name, raw in output.items():
        if name in _TEXTS:
            size += len(memoryview(raw))
        elif name in _THOUGHTS:
            thoughts = max(thoughts, len(memoryview(raw)))
        elif name in _CALLS:
            size += _argument_bytes(output, name)
        elif name.startswith(_OTHER_THOUGHTS):
            thoughts = max(thoughts, _other_bytes(name, raw))
        else:
            size += _other_bytes(name, raw)
    return _tokens_of(size + thoughts)


def tokens_elsewhere(raw: bytes) -> int:
    """A lower bound of the tokens in a chunk that has text only inside members that this module does not know."""
    size = nested_text_bytes(decoded(raw))
    return _tokens_of(size) if size else 0


def _tokens_of(size: int) -> int:
    return 1 if size <= ONE_TOKEN_BYTES + _QUOTES else size // BYTES_PER_TOKEN


def nested_text_bytes(value: object) -> int:
    """The bytes of all texts in a value, at any depth, whose names are in `_OTHER_TEXTS`."""
    total, rest = 0, [("", value)]
    while rest:
        name, found = rest.pop()
        if isinstance(found, dict):
            rest += found.items()
        elif isinstance(found, list):
            rest += [(name, each) for each in found]
        elif isinstance(found, str) and name in _OTHER_TEXTS:
            total += len(found.encode("utf-8", "replace"))
    return total


def _other_bytes(name: str, raw: Raw) -> int:
    if memoryview(raw)[0] in _NESTED:
        return nested_text_bytes(decoded(raw))
    return len(memoryview(raw)) if name in _OTHER_TEXTS and memoryview(raw)[0] == _QUOTE else 0


def thoughts_in(output: dict[str, Raw]) -> str:
    """The name of the member that holds thoughts; empty if an output has none."""
    for name in _THOUGHTS:
        if name in output:
            return name
    return ""


def arguments_of(raw: Raw) -> Raw:
    """The arguments in a chunk's `tool_calls`; empty unless there is exactly one call, without an id or a name."""
    try:
        calls = _calls(raw)
    except _UNREADABLE:
        return Raw()
    function = calls[0].function if len(calls) == 1 and not is_filled(calls[0].id) else None
    return Raw() if function is None or is_filled(function.name) else function.arguments


def _argument_bytes(output: dict[str, Raw], name: str) -> int:
    """The bytes of the arguments of all calls in a member."""
    raw = output[name]
    try:
        if name == "function_call":
            return len(memoryview(_function(raw).arguments))
        calls = _calls(raw)
    except _UNREADABLE:
        return len(memoryview(raw))
    size = sum([len(memoryview(call.function.arguments)) for call in calls if call.function is not None])
    return size + sum([len(memoryview(call.custom.input)) for call in calls if call.custom is not None])


def generated_bytes(choices: list[ChoiceView]) -> int:
    """The bytes of all texts, thoughts and arguments of a whole answer."""
    total = 0
    for choice in choices:
        output = choice.outputs()
        thoughts = 0
        for name, raw in output.items():
            if name in _TEXTS:
                total += _text_bytes(raw)
            elif name in _CALLS:
                total += _argument_bytes(output, name)
            elif name.startswith(_OTHER_THOUGHTS):
                thoughts = max(thoughts, _text_bytes(raw) if name in _THOUGHTS else _other_bytes(name, raw))
            else:
                total += _other_bytes(name, raw)
        total += thoughts
    return total


def most_output_bytes(choices: list[ChoiceView]) -> int:
    """How many bytes of JSON the texts, thoughts and calls of a whole answer take at most."""
    total = 0
    for choice in choices:
        output = choice.outputs()
        for name, raw in output.items():
            is_known = name in _TEXTS or name in _THOUGHTS or name in _CALLS
            total += len(memoryview(raw)) if is_known else _other_bytes(name, raw)
    return total


def _text_bytes(raw: Raw) -> int:
    text = decoded(raw)
    return len(text.encode("utf-8", "replace")) if isinstance(text, str) else len(memoryview(raw))
