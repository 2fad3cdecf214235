"""Defines tools that a request names by their type only, such as `bash_20250124`, and that its client runs.

Claude knows the parameters of these tools, but other models have to be told. The parameters are those of Anthropic's
tool reference and of the client libraries that run the tools (anthropic 2.14, AI SDK 7, langchain-anthropic).
"""

import re
from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.chat_draft import function_tool
from warmroute_proxy.dialects.raw_json import ChatPart, Members, encode, text_at

_VERSION: Final = re.compile(r"_\d{8}$")
_SIZE: Final = re.compile(rb"\d{1,5}")


class _Tool(NamedTuple):
    description: str
    properties: dict[str, Any]
    required: tuple[str, ...]


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _numbers(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "integer"}, "description": description}


_ACTIONS: Final = (
    "key", "type", "cursor_position", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click",
    "double_click", "screenshot",
)  # fmt: skip
_LATER_ACTIONS: Final = ("hold_key", "left_mouse_down", "left_mouse_up", "triple_click", "scroll", "wait")
_FILES: Final[dict[str, Any]] = {
    "path": _text("The path of the file or folder."),
    "view_range": _numbers("view: the first and the last line to show; -1 is the end of the file."),
    "file_text": _text("create: the content of the file."),
    "old_str": _text("str_replace: the text to replace, which must occur exactly once."),
    "new_str": _text("str_replace: the text to put in its place."),
    "insert_line": {"type": "integer", "description": "insert: the line after which to insert; 0 is the beginning."},
}
_INSERTED: Final = _text("insert: the text to insert.")


def _files(description: str, *more: str, **properties: Any) -> _Tool:
    command = {"type": "string", "enum": ["view", "create", "str_replace", "insert", *more]}
    return _Tool(description, {"command": command, **_FILES, **properties}, ("command",))


_FIRST_EDITOR: Final = _files(
    "View, create and edit text files.", "undo_edit",
    new_str=_text("str_replace: the text to put in its place. insert: the text to insert."),
)  # fmt: skip
_BASH: Final = _Tool(
    "Run commands in a bash shell that keeps its state between calls.",
    {
        "command": _text("The command to run."),
        "restart": {"type": "boolean", "description": "true: restart the shell instead of running a command."},
    },
    (),
)
_TOOLS: Final = {
    "bash": _BASH,
    "text_editor": _files("View, create and edit text files.", insert_text=_INSERTED),
    "text_editor_20241022": _FIRST_EDITOR,
    "text_editor_20250124": _FIRST_EDITOR,
    "memory": _files(
        "Files in /memories, which are kept between conversations. View this folder before you begin a task, and "
        "write down there what later conversations need.",
        "delete", "rename", insert_text=_INSERTED, old_path=_text("rename: the present path."),
        new_path=_text("rename: the new path."),
    ),
}  # fmt: skip


def client_tool(kind: str, tool: Members, path: str) -> ChatPart | None:
    """A tool of the type `kind` as a function of chat; None if its client does not run it. Raises: Misshapen."""
    family = _VERSION.sub("", kind)
    found = _computer(kind, tool) if family == "computer" else _TOOLS.get(kind) or _TOOLS.get(family)
    if found is None:
        return None
    described = {**tool, "description": Raw(encode(found.description))}
    parameters = {"type": "object", "properties": found.properties, "required": found.required}
    return function_tool(described, path, text_at(tool, "name", path), parameters)


def _computer(kind: str, tool: Members) -> _Tool:
    later = () if kind == "computer_20241022" else _LATER_ACTIONS
    zoom = ("zoom",) if bytes(tool.get("enable_zoom", b"")) == b"true" else ()
    sizes = [bytes(tool.get(name, b"")) for name in ("display_width_px", "display_height_px")]
    is_known = all(map(_SIZE.fullmatch, sizes))
    screen = f" of {b' x '.join(sizes).decode()} pixels" if is_known else ""
    properties: dict[str, Any] = {
        "action": {"type": "string", "enum": [*_ACTIONS, *later, *zoom]},
        "coordinate": _numbers("[x, y] in pixels, from the left and from the top."),
        "start_coordinate": _numbers("left_click_drag: [x, y] of its beginning."),
        "text": _text("type: the text. key, hold_key: keys such as ctrl+s. Clicks and scroll: keys to hold meanwhile."),
    }
    if later:
        properties["scroll_direction"] = {"type": "string", "enum": ["up", "down", "left", "right"]}
        properties["scroll_amount"] = {"type": "integer", "description": "scroll: how many clicks of the wheel."}
        properties["duration"] = {"type": "number", "description": "hold_key, wait: seconds."}
    if zoom:
        properties["region"] = _numbers("zoom: [x0, y0, x1, y1] of the part to show.")
    return _Tool(f"Use the mouse and keyboard of a computer, and see its screen{screen}.", properties, ("action",))
