"""Defines `shell` and `apply_patch`, which a request names by their type only, and which its client runs.

OpenAI's models know the parameters of these tools, but other models have to be told. The parameters are the members
of the tools' calls, so a call in the history reads as the model made it.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw

from warmroute_proxy.dialects.chat_draft import function_tool
from warmroute_proxy.dialects.raw_json import ChatPart, Members, encode, is_list, is_object, object_at, text_in
from warmroute_proxy.dialects.work import TranslationWork

Json = dict[str, Any]

SHELL: Final = "shell"
PATCH: Final = "apply_patch"
WITH_OUTPUTS: Final = frozenset({f"{kind}_call{end}" for kind in (SHELL, PATCH) for end in ("", "_output")})
"""The types of the items that calls of these tools and their outputs have."""

_WORDS: Final = {
    SHELL: "Run commands in a shell. Commands of one call run independently of each other, maybe at the same time.",
    PATCH: (
        "Create, update or delete one file by a diff. In the diff of a new file, each line begins with +. The diff of "
        "an update has sections. A section begins with a line @@ alone, or with @@ and a line of the file that stands "
        "above the change, such as the head of a function. Then come some unchanged lines, each after a space, removed "
        "lines after -, added lines after +, and some unchanged lines again. A section has no line numbers."
    ),
}
_TEXT: Final = {"type": "string"}
_PROPERTIES: Final[dict[str, Json]] = {
    SHELL: {
        "commands": {"type": "array", "items": _TEXT},
        "timeout_ms": {"type": "integer", "description": "Milliseconds that the commands may take."},
        "max_output_length": {"type": "integer", "description": "Characters of output to return."},
    },
    PATCH: {
        "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        "path": _TEXT,
        "diff": {"type": "string", "description": "The diff, unless the file is deleted."},
    },
}
_REQUIRED: Final = {SHELL: ["commands"], PATCH: ["type", "path"]}
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)

_Given = Annotated[str, Meta(min_length=1)]


class _Action(msgspec.Struct, omit_defaults=True):
    commands: Annotated[list[str], Meta(min_length=1)] | _Given
    timeout_ms: int | None = None
    max_output_length: int | None = None


class _Operation(msgspec.Struct, omit_defaults=True):
    type: Literal["create_file", "update_file", "delete_file"]
    path: _Given
    diff: str | None = None


class _Outcome(msgspec.Struct):
    type: str = ""
    exit_code: int | None = 0


class _Ran(msgspec.Struct):
    """What a command wrote."""

    stdout: str | None = ""
    stderr: str | None = ""
    outcome: _Outcome | None = None


_decode_action: Final = msgspec.json.Decoder(_Action, strict=False).decode
_decode_operation: Final = msgspec.json.Decoder(_Operation).decode
_decode_ran: Final = msgspec.json.Decoder(list[_Ran]).decode


def client_tool(kind: str, tool: Members, path: str, work: TranslationWork) -> ChatPart | None:
    """A tool of the type `kind` as a function of chat; None if its client does not run it. Raises: Misshapen."""
    if kind not in _WORDS:
        return None
    words = _WORDS[kind]
    if kind == SHELL and "environment" in tool:
        machine = object_at(tool["environment"], path) if is_object(tool["environment"]) else {}
        if text_in(machine, "type") != "local":
            return None
        words += _skills(machine, path, work)
    parameters = {"type": "object", "properties": _PROPERTIES[kind], "required": _REQUIRED[kind]}
    return function_tool({"description": Raw(encode(words))}, path, kind, parameters)


def _skills(machine: Members, path: str, work: TranslationWork) -> str:
    """The skills on the client's machine: a name, a description, and a folder with more."""
    raw = machine.get("skills")
    given = work.take_list(raw, path) if raw is not None and is_list(raw) else []
    skills = [object_at(each, path) for each in given if is_object(each)]
    lines = [f"- {text_in(each, 'name')} ({text_in(each, 'path')}): {text_in(each, 'description')}" for each in skills]
    return "\n".join(["\nThe folders of these skills have instructions in SKILL.md:", *lines]) if lines else ""


def client_call(kind: str, arguments: str) -> Json | None:
    """The members of a call that only its type has; None if the arguments are not those of the tool."""
    try:
        if kind == SHELL:
            action = _decode_action(arguments)
            if isinstance(action.commands, str):
                action.commands = [action.commands]
            return {"action": msgspec.to_builtins(action)}
        operation = _decode_operation(arguments)
    except _PROBLEMS:
        return None
    if operation.type == "delete_file":
        operation.diff = None
    elif operation.diff is None:
        return None
    return {"operation": msgspec.to_builtins(operation)}


def shell_text(raw: Raw, work: TranslationWork) -> str | None:
    """The outputs of commands, with the exit codes of those that failed; None if they cannot be read."""
    try:
        outputs = _decode_ran(raw)
    except _PROBLEMS:
        return None
    work.take(1 + len(outputs))
    return "\n".join([text for each in outputs for text in (each.stdout, each.stderr, _ending(each.outcome)) if text])


def _ending(outcome: _Outcome | None) -> str:
    if outcome is not None and outcome.type == "timeout":
        return "[timed out]"
    return f"[exit code {outcome.exit_code}]" if outcome is not None and outcome.exit_code else ""


def patch_text(status: str, output: str) -> str:
    """The result of a patch: its output, and its status if the patch failed or has no output."""
    return "\n".join([text for text in (status if status == "failed" or not output else "", output) if text])
