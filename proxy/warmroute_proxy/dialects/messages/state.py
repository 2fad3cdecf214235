"""Members of a request that ask the server to keep state or to act by itself: refused with a reason, or dropped.

`context_management` only removes parts of a prompt to save tokens, so an answer without it is not wrong. The member is
dropped and named, unless it asks for a summary.
"""

from typing import Final

from warmroute_proxy.dialects.raw_json import BadRequest, Members, is_list, list_at, object_at, text_in

THREAD_UNSUPPORTED: Final = "thread_unsupported_request"
"""Anthropic's clients go on without a thread if an error has this `error_code` in its `details`."""

_MANAGEMENT: Final = "context_management"
_REFUSED: Final = {
    "container": "no container runs here: leave it out",
    "compaction": "this proxy sums up no messages: let the client do it",
}
STATE: Final = ("thread", *_REFUSED, _MANAGEMENT, "mcp_servers")


def refuse_state(members: Members, dropped: set[str]) -> None:
    """Refuse members that ask the server to keep, do or summarise something that the answer would lack. If
    `context_management` is ignored, it is added to `dropped`. Raises: BadRequest.
    """
    if "thread" in members:
        problem = "no thread is kept here: send the whole conversation without it"
        raise BadRequest("thread", problem, code="thread_unsupported_request")
    for name, instead in _REFUSED.items():
        if name in members:
            raise BadRequest(name, instead)
    if "mcp_servers" in members and list_at(members["mcp_servers"], "mcp_servers"):
        raise BadRequest("mcp_servers", "this proxy connects to no MCP server: let the client do it")
    if _MANAGEMENT in members:
        edits = object_at(members[_MANAGEMENT], _MANAGEMENT).get("edits")
        for raw in [] if edits is None or not is_list(edits) else list_at(edits, f"{_MANAGEMENT}.edits"):
            if text_in(object_at(raw, f"{_MANAGEMENT}.edits"), "type").startswith("compact"):
                raise BadRequest(f"{_MANAGEMENT}.edits", _REFUSED["compaction"])
        dropped.add(_MANAGEMENT)
