"""The causes of broken prefixes, each with its meaning and its remedy."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Cause(StrEnum):
    """Why tokens of an earlier prompt cannot be reused. The value is the name in options, tables and JSON."""

    TOOL_ORDER = "tool-order"
    TOOL_SET = "tool-set"
    TOOL_SCHEMA = "tool-schema"
    HISTORY_EDITED = "history-edited"
    HISTORY_PRUNED = "history-pruned"
    COMPACTION = "compaction"
    REASONING_DROPPED = "reasoning-dropped"
    CONTENT_SHAPE = "content-shape"
    KEY_ORDER = "key-order"
    IMAGE_RESIGNED = "image-resigned"
    SETTINGS = "settings"
    MODEL = "model"
    SYSTEM_IN_HISTORY = "system-in-history"
    SYSTEM = "system"
    DATE = "date"
    NONCE = "nonce"
    MEMORY_FILE = "memory-file"
    TOKEN_COUNTER = "token-counter"  # noqa: S105 - no password
    WORKING_DIRECTORY = "working-directory"
    CACHE_MARKS = "cache-marks"
    PROVIDER_MISS = "provider-miss"
    IDLE = "idle"
    TOO_SHORT = "too-short"
    FIRST_TURN = "first-turn"


class Words(NamedTuple):
    """The meaning of a cause, and the remedy."""

    meaning: str
    fix: str


CLIENTS_OWN: Final = frozenset(Cause) - {Cause.PROVIDER_MISS, Cause.IDLE, Cause.TOO_SHORT, Cause.FIRST_TURN}
"""Causes that a change of the client's code can remove. For any other cause, searching that code is useless."""

WORDS: Final[Mapping[Cause, Words]] = {
    Cause.TOOL_ORDER: Words(
        "the same tools came in another order", "send tools in one order, such as sorted by name; repair: sort-tools"
    ),
    Cause.TOOL_SET: Words(
        "tools were added or removed",
        "send one set of tools for the whole session, new ones at its end; repair: append-only-tools",
    ),
    Cause.TOOL_SCHEMA: Words(
        "the definition of a tool changed", "keep descriptions and schemas constant within a session"
    ),
    Cause.HISTORY_EDITED: Words("a message that was sent before changed", "append messages, and never rewrite them"),
    Cause.HISTORY_PRUNED: Words(
        "old messages or tool results were removed", "prune rarely and much at once: client.cache.prune(...)"
    ),
    Cause.COMPACTION: Words(
        "the history was replaced by a summary",
        "summarise with the same tools, system prompt and history: client.cache.compact(...)",
    ),
    Cause.REASONING_DROPPED: Words(
        "reasoning that was sent before is missing", "send reasoning back unchanged; repair: keep-reasoning"
    ),
    Cause.CONTENT_SHAPE: Words(
        "the same text came divided into other parts", "keep the parts of a message as they were sent first"
    ),
    Cause.KEY_ORDER: Words(
        "the keys of a JSON object came in another order",
        "serialise tools and their arguments in one order; repair: canonical-schemas",
    ),
    Cause.IMAGE_RESIGNED: Words(
        "the address of an image was signed again", "send the image by its content, or keep its first address"
    ),
    Cause.SETTINGS: Words(
        "a setting that is part of the prompt changed", "keep reasoning and format settings within a session"
    ),
    Cause.MODEL: Words("the model changed, and each model has a separate cache", "keep one model within a session"),
    Cause.SYSTEM_IN_HISTORY: Words(
        "a system message came behind the first turn, which many templates move to the front",
        "send it as a user message",
    ),
    Cause.SYSTEM: Words("the system prompt changed", "keep the system prompt constant, and append new text"),
    Cause.DATE: Words(
        "a date or time changed", "move it to the newest user message, or keep one per session; repair: freeze-date"
    ),
    Cause.NONCE: Words(
        "an identifier that is new each time changed", "leave it out of the prompt; repair: move-volatile"
    ),
    Cause.MEMORY_FILE: Words(
        "the text of a memory file (AGENTS.md, CLAUDE.md) changed", "read it once per session, and append its changes"
    ),
    Cause.TOKEN_COUNTER: Words(
        "a counter of tokens changed", "write it into the newest user message; repair: move-volatile"
    ),
    Cause.WORKING_DIRECTORY: Words(
        "a path such as the working directory changed", "move it after the constant text; repair: move-volatile"
    ),
    Cause.CACHE_MARKS: Words(
        "there were more cache_control marks than the server takes",
        "at most four, on parts that stay; repair: anthropic-breakpoints",
    ),
    Cause.PROVIDER_MISS: Words(
        "the prefix was intact and the server did not have it", "nothing on your side, if the session key was sent"
    ),
    Cause.IDLE: Words(
        "the session was idle longer than the server keeps its cache", "shorter pauses, or client.cache.keep_warm(...)"
    ),
    Cause.TOO_SHORT: Words("the prompt is shorter than the server's shortest cached prefix", "nothing to do"),
    Cause.FIRST_TURN: Words("it was the first turn of this prompt", "nothing to do, or client.cache.warm(...)"),
}


def cause_named(name: str) -> Cause:
    """Return the cause with this name. Raises: ValueError, which lists the names."""
    try:
        return Cause(name)
    except ValueError:
        raise ValueError(f"{name!r} is not a cause; causes: {', '.join(sorted(Cause))}") from None
