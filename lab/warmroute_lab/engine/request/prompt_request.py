"""Reads a request body into one `PromptRequest` per prompt, and checks all fields that the engine uses.

As in SGLang, unknown fields are ignored and unknown model names are accepted. A chat has one prompt. A completion or
`/generate` may have several prompts (a batch); each of them becomes a `PromptRequest` of its own.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final, Literal

import msgspec

from warmroute_lab.engine.http import fields
from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.http.fields import Body
from warmroute_lab.engine.model import prompt
from warmroute_lab.engine.request.text import MAX_SCRIPT_STEPS, NO_SCRIPT, Script, ScriptedCall, read_script

# Directives in a prompt's own text, which the engine obeys if it is started with `--obey-prompts`.
#
# Agent programs send no script in their metadata, but they send what their user types. So a line of that text orders
# the answer:
#
#     obey: call bash {"command": "ls"}
#     obey: think 40; call read {"path": "a.py"}; call read {"path": "b.py"}
#     obey: run 400
#     obey: answer All is done.
#
# Each `obey:` line is a step: one answer of the model. Only the newest message of role `user` or `tool` that has any
# counts. The number of assistant messages after it selects the line, so one message orders many turns. A directive must
# begin its line. A directive inside the arguments of a call, as for a sub-agent, is not obeyed here: it is for the
# program that gets it as a message.
#
# The orders of a step are separated by `;`. `answer` takes the rest of the line, or a JSON string if line breaks are
# needed. After the last step, answers are pseudo-words. Only tools that the request offers can be called. For any other
# tool, and for a line that cannot be read, the answer is a text that says so.


MAX_RUN_TOKENS: Final = 100_000
MAX_CALLS: Final = 64
MAX_NAMED_TOOLS: Final = 64
_LINE: Final = re.compile(r"^[ \t]*obey:[ \t]*(.*)$", re.MULTILINE)
_WORD: Final = re.compile(r"[^\s;]+")
_decoded: Final = JSONDecoder().raw_decode


class BadDirective(ValueError):
    """A directive cannot be read; the message tells its author why."""


def obeyed(body: Mapping[str, Any]) -> Script:
    """The step that the messages of a chat body order; `NO_SCRIPT` if they order nothing."""
    messages: Sequence[Mapping[str, Any]] = body.get("messages") or ()
    if body.get("continue_final_message"):
        messages = messages[:-1]  # the beginning of the answer
    turn = 0
    for message in reversed(messages):
        role = str(message.get("role")).lower()
        if role == "assistant":
            turn += 1
        elif role in ("user", "tool"):
            lines = _LINE.findall(_text(message.get("content")))
            if lines:
                return _step(lines[turn], _offered(body)) if turn < min(len(lines), MAX_SCRIPT_STEPS) else NO_SCRIPT
    return NO_SCRIPT


def _step(line: str, offered: Sequence[str]) -> Script:
    try:
        script = _read(line)
    except BadDirective as error:
        return Script(text=f"This directive cannot be obeyed: {error}.")
    missing = next((call.name for call in script.calls if call.name not in offered), None)
    if missing is None:
        return script
    names = ", ".join(offered[:MAX_NAMED_TOOLS]) or "none"
    return replace(script, calls=(), text=f"The tool {missing} is not offered in this request; offered: {names}.")


def _read(line: str) -> Script:
    script, at = NO_SCRIPT, 0
    while True:
        order, at = _word(line, at)
        if order == "answer":
            return replace(script, text=_answer(line[at:].strip()))
        if order == "call":
            name, at = _word(line, at)
            arguments, at = _arguments(line, at)
            if len(script.calls) == MAX_CALLS:
                raise BadDirective(f"it has more than {MAX_CALLS} calls")
            script = replace(script, calls=(*script.calls, ScriptedCall(name, arguments)))
        elif order == "think":
            count, at = _word(line, at)
            script = replace(script, think_tokens=_tokens(order, count))
        elif order == "run":
            count, at = _word(line, at)
            script = replace(script, output_tokens=_tokens(order, count))
        else:
            raise BadDirective(f"{order[:40]!r} is not an order; there are call, think, run and answer")
        rest = line[at:].lstrip()
        if not rest:
            return script
        if rest[0] != ";":
            raise BadDirective(f"a ; is missing before {rest[:40]!r}")
        at = len(line) - len(rest) + 1


def _word(line: str, at: int) -> tuple[str, int]:
    found = _WORD.search(line, at)
    if found is None or line[at : found.start()].strip():
        raise BadDirective("a word is missing: call TOOL {JSON}, think N, run N, answer TEXT")
    return found[0], found.end()


def _arguments(line: str, at: int) -> tuple[str, int]:
    """The JSON object of a call as it was written, and the position after it."""
    begin = len(line) - len(line[at:].lstrip())
    try:
        value, end = _decoded(line, begin)
    except (JSONDecodeError, RecursionError):
        value, end = None, begin
    if not isinstance(value, dict):
        raise BadDirective("the arguments of a call must be a JSON object")
    return line[begin:end], end


def _tokens(order: str, count: str) -> int:
    if not count.isascii() or not count.isdecimal() or not 1 <= int(count[:9]) <= MAX_RUN_TOKENS:
        raise BadDirective(f"{order} takes a number from 1 to {MAX_RUN_TOKENS}")
    return int(count)


def _answer(text: str) -> str:
    if text.startswith('"'):
        try:
            value, end = _decoded(text)
        except JSONDecodeError:
            return text
        if isinstance(value, str) and end == len(text):
            return value
    return text


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = [piece.get("text") for piece in content if isinstance(piece, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _offered(body: Mapping[str, Any]) -> list[str]:
    if body.get("tool_choice") == "none":
        return []
    tools = [tool.get("function") for tool in body.get("tools") or () if isinstance(tool, dict)]
    return [str(tool.get("name")) for tool in tools if isinstance(tool, dict)]


Kind = Literal["chat", "completion", "generate"]
Headers = Mapping[bytes, bytes]

MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_STOPS = 64
MAX_LOGPROBS = 128
DEFAULT_MODEL = "default"
COMPLETION_TOKENS = 16
GENERATE_TOKENS = 128
"""The default limits of an answer's length for completions and `/generate`; a chat may fill the context."""

_ROLES = {"user", "system", "assistant", "tool", "function", "developer", "latest_reminder", "root"}
_NEED_CONTENT = {"user"}
_OVERRIDES = {
    b"x-override-rid": ("rid", str),
    b"x-override-bootstrap-host": ("bootstrap_host", str),
    b"x-override-bootstrap-port": ("bootstrap_port", int),
    b"x-override-bootstrap-room": ("bootstrap_room", int),
    b"x-override-routed-dp-rank": ("routed_dp_rank", int),
    b"x-override-disagg-prefill-dp-rank": ("disagg_prefill_dp_rank", int),
    b"x-override-priority": ("priority", int),
}
_decode = msgspec.json.Decoder().decode


@dataclass(slots=True)
class PromptRequest:
    """One prompt of a request. `None` stands for an absent field. `rendered` is the whole prompt text; `begun` is its
    end, if that already belongs to the answer.
    """

    kind: Kind
    rid: str
    model: str
    rendered: bytes
    begun: bytes
    cache_salt: str | None
    extra_key: str | None
    session_id: str | None
    script: Script
    stream: bool
    batch: bool
    include_usage: bool
    continuous_usage: bool
    cached_details: bool
    n: int
    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    thinking: bool
    logprobs: int | None
    bootstrap_room: int | None
    bootstrap_host: str | None
    bootstrap_port: int | None
    dp_rank: int | None
    prefill_dp_rank: int | None

    @property
    def namespace(self) -> bytes:
        """`cache_salt` and `extra_key`, which name separate caches. Lengths are included, so no two pairs collide."""
        out = b""
        for value in (self.cache_salt, self.extra_key):
            out += b"-" if value is None else b"%d:%b" % (len(value.encode()), value.encode())
        return out


def parse(raw: bytes) -> dict[str, Any]:
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal.schema(f"the request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal.schema("the request body must be a JSON object")
    return body


def overridden(body: Body, headers: Headers) -> Body:
    """The body, with members replaced by `x-override-*` headers."""
    found: dict[str, Any] = {}
    for header, (name, kind) in _OVERRIDES.items():
        value = headers.get(header)
        if value is not None:
            try:
                found[name] = kind(value.decode("latin-1"))
            except ValueError as error:
                raise Refusal.http(f"invalid {header.decode()} header: {error}") from None
    return {**body, **found} if found else body


def read(kind: Kind, body: Body, headers: Headers, *, obey_prompts: bool = False) -> list[PromptRequest]:
    """Check a body and return one `PromptRequest` per prompt.

    With `obey_prompts`, a chat without a script in its metadata follows the directives in its messages.
    """
    prompts, batch = _prompts(kind, body)
    rids = _rids(body, len(prompts), batch=batch)
    salts, keys = (fields.each(body, name, str, len(prompts)) for name in ("cache_salt", "extra_key"))
    bootstrap_rooms = _bootstrap_rooms(body, len(prompts))
    hosts = fields.each(body, "bootstrap_host", str, len(prompts))
    first = _first(kind, body, headers, batch=batch)
    if obey_prompts and kind == "chat" and first.script is NO_SCRIPT:
        script = obeyed(body)
        first = replace(first, script=script, thinking=first.thinking or script.think_tokens is not None)
    return [
        replace(
            first,
            rid=rids[i],
            rendered=rendered,
            cache_salt=salts[i],
            extra_key=keys[i],
            bootstrap_room=bootstrap_rooms[i],
            bootstrap_host=hosts[i],
        )
        for i, rendered in enumerate(prompts)
    ]


def _first(kind: Kind, body: Body, headers: Headers, *, batch: bool) -> PromptRequest:
    """A `PromptRequest` with the fields that all prompts of a request share; `read` fills in those of each prompt."""
    sampling = fields.mapping(body, "sampling_params") if kind == "generate" else body
    options = fields.mapping(body, "stream_options")
    stream = fields.flag(body, "stream")
    _check_sampling(sampling)
    return PromptRequest(
        kind=kind,
        rid="",
        model=_model(body),
        rendered=b"",
        begun=prompt.begun_answer(body) if kind == "chat" and fields.flag(body, "continue_final_message") else b"",
        cache_salt=None,
        extra_key=None,
        session_id=fields.string(body, "session_id"),
        script=read_script(body),
        stream=stream,
        batch=batch,
        include_usage=stream and fields.flag(options, "include_usage"),
        continuous_usage=stream and fields.flag(options, "continuous_usage_stats"),
        cached_details=fields.flag(body, "return_cached_tokens_details"),
        n=_choices(sampling),
        max_tokens=_max_tokens(kind, sampling),
        stops=fields.strings(sampling, "stop", MAX_STOPS),
        ignore_eos=fields.flag(sampling, "ignore_eos"),
        thinking=kind == "chat" and _thinking(body),
        logprobs=_logprobs(kind, body),
        bootstrap_room=None,
        bootstrap_host=None,
        bootstrap_port=fields.within(body, "bootstrap_port", 1, 65_535),
        dp_rank=_dp_rank(body, headers.get(b"x-data-parallel-rank")),
        prefill_dp_rank=fields.within(body, "disagg_prefill_dp_rank", 0, None),
    )


# --- prompts ---------------------------------------------------------------------------------------------------------


def _prompts(kind: Kind, body: Body) -> tuple[list[bytes], bool]:
    """The rendered prompts, and whether they came as a batch."""
    if kind == "chat":
        _check_messages(body)
        return [prompt.render(body)], False
    if kind == "completion":
        given = body.get("prompt")
        if given == "" or (isinstance(given, list) and not any(given)):
            raise Refusal(400, "Prompt cannot be empty")
    else:
        given = body.get("text") if body.get("text") is not None else body.get("input_ids")
        if given is None:
            raise Refusal(400, "Either text, input_ids or input_embeds should be provided.")
    if isinstance(given, str) or _are_token_ids(given):
        return [prompt.render_plain(given)], False
    items = given if isinstance(given, list) and len(given) <= MAX_PROMPTS else []
    if items and (all(isinstance(item, str) for item in items) or all(_are_token_ids(item) for item in items)):
        return [prompt.render_plain(item) for item in items], True
    raise Refusal.schema(f"a prompt must be a string, a list of token ids, or a list of at most {MAX_PROMPTS} of these")


def _are_token_ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(token) is int and token >= 0 for token in given)


def _check_messages(body: Body) -> None:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise Refusal.schema("messages must be a list")
    if not messages:
        raise Refusal(400, "Messages cannot be empty.")
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role.lower() not in _ROLES:
            raise Refusal.schema(f"messages[{i}] must be an object with one of the roles {sorted(_ROLES)}")
        content = message.get("content")
        if not isinstance(content, str | list | None) or (content is None and role.lower() in _NEED_CONTENT):
            raise Refusal.schema(f"messages[{i}].content must be a string or a list of parts")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise Refusal.schema(f"messages[{i}].tool_calls must be a list of objects")
        if any(not isinstance(call.get("function") or {}, dict) for call in calls or ()):
            raise Refusal.schema(f"messages[{i}].tool_calls[].function must be an object")
    if not isinstance(body.get("tools"), list | None):
        raise Refusal.schema("tools must be a list")


def _rids(body: Body, count: int, *, batch: bool) -> list[str]:
    """The id of each prompt: the given id, with a number if a batch has only one id, or a random one."""
    given = fields.each(body, "rid", str, count)
    if batch and isinstance(body.get("rid"), str):
        return [f"{rid}_{i}" for i, rid in enumerate(given)]
    if len({rid for rid in given if rid}) < sum(1 for rid in given if rid):
        raise Refusal(400, "Duplicate request IDs detected within the request")
    return [rid or os.urandom(16).hex() for rid in given]


def _bootstrap_rooms(body: Body, count: int) -> list[int | None]:
    """The bootstrap room of each prompt. If one number is given, the first prompt has it, and the others count up."""
    if isinstance(body.get("bootstrap_room"), list):
        return fields.each(body, "bootstrap_room", int, count)
    bootstrap_room = fields.within(body, "bootstrap_room", None, (1 << 64) - 1)
    return [None if bootstrap_room is None else bootstrap_room + i for i in range(count)]


# --- members ---------------------------------------------------------------------------------------------------------


def _model(body: Body) -> str:
    name = body.get("model", DEFAULT_MODEL)
    if not isinstance(name, str):
        raise Refusal.schema("model must be a string")
    return name


def _choices(sampling: Body) -> int:
    number = fields.within(sampling, "n", 1, MAX_CHOICES)
    return 1 if number is None else number


def _max_tokens(kind: Kind, sampling: Body) -> int | None:
    if kind == "generate":
        limit = _limit(sampling, "max_new_tokens")
        return GENERATE_TOKENS if limit is None else limit
    if kind == "completion":
        limit = _limit(sampling, "max_tokens")
        return COMPLETION_TOKENS if limit is None else limit
    limit = _limit(sampling, "max_completion_tokens")
    return limit if limit is not None else _limit(sampling, "max_tokens")


def _limit(sampling: Body, name: str) -> int | None:
    value = fields.integer(sampling, name)
    if value is not None and value < 0:
        raise Refusal(400, f"max_new_tokens must be at least 0, got {value}.")
    return value


def _check_sampling(sampling: Body) -> None:
    """Check the ranges of sampling parameters that this engine does not use."""
    temperature, top_p = sampling.get("temperature"), sampling.get("top_p")
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if not isinstance(value, int | float | None):
            raise Refusal.schema(f"{name} must be a number")
    if temperature is not None and temperature < 0:
        raise Refusal(400, f"temperature must be a non-negative finite number, got {temperature}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise Refusal(400, f"top_p must be in (0, 1], got {top_p}.")


def _thinking(body: Body) -> bool:
    kwargs = fields.mapping(body, "chat_template_kwargs")
    for name in ("enable_thinking", "thinking"):
        if name in kwargs:
            return bool(kwargs[name])
    effort = body.get("reasoning_effort")
    return effort is not None and effort != "none"


def _logprobs(kind: Kind, body: Body) -> int | None:
    """How many top alternatives come with each token; None if the request asks for no log probabilities."""
    if kind == "completion":
        return fields.within(body, "logprobs", 0, MAX_LOGPROBS)
    if kind == "generate":
        top = fields.within(body, "top_logprobs_num", 0, MAX_LOGPROBS)
        return (top or 0) if body.get("return_logprob") else None
    if not fields.flag(body, "logprobs"):
        return None
    return max(0, fields.within(body, "top_logprobs", None, MAX_LOGPROBS) or 0)


def _dp_rank(body: Body, header: bytes | None) -> int | None:
    if header is not None:
        try:
            return int(header)
        except ValueError:
            raise Refusal.http("Invalid X-Data-Parallel-Rank header: must be an integer") from None
    rank = fields.integer(body, "routed_dp_rank")
    return rank if rank is not None else fields.integer(body, "data_parallel_rank")
