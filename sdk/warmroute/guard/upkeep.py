"""Compaction and pruning that keep the prefix, for programs with a history that is too long.

A summary costs little if its request repeats the session's tools, system prompt and history, and asks for the summary
at the end: then only that last message is computed. Each clearing of old tool results breaks the prefix once, so one
large clearing pays and many small ones do not. At prices `input` and `cached` per token, clearing `removed` tokens that
are followed by `after` other tokens

    costs now        after x (input - cached)
    saves each turn  removed x cached
"""

from collections.abc import Sequence
from typing import Any, Final

from warmroute.guard.memory import BYTES_PER_TOKEN
from warmroute.guard.prompt import role_of, text_of

CLEARED: Final = "[Old tool result cleared]"
CACHED_SHARE: Final = 0.1
"""The price of a cached token over an uncached one, used if no receipt states it. Most vendors: 0.1 to 0.2."""

_MIN_CHARS: Final = 400
"""Shorter tool results are not cleared: a placeholder would save too little."""


def compacted(messages: Sequence[Any], instruction: str) -> list[Any]:
    """The messages with an instruction at the end."""
    if not instruction:
        raise ValueError("compact() needs an instruction, such as 'Summarise this conversation.'")
    return [*messages, {"role": "user", "content": instruction}]


def pruned(
    messages: Sequence[Any], keep: int, turns_ahead: int, cached_share: float = CACHED_SHARE
) -> list[Any] | None:
    """The messages with all tool results cleared except the last `keep`; None if clearing costs more than it saves.

    `turns_ahead`: the expected number of later turns. `cached_share`: price of a cached token over an uncached one.
    """
    if keep < 0 or turns_ahead < 1:
        raise ValueError("prune() needs keep of 0 or more, and turns_ahead of 1 or more")
    results = [at for at, message in enumerate(messages) if _is_long_result(message)]
    chosen = results[: len(results) - keep] if keep else results
    if not chosen:
        return None
    found = [_cleared(message) if at in set(chosen) else message for at, message in enumerate(messages)]
    removed = sum(_tokens(messages[at]) - _tokens(found[at]) for at in chosen)
    after = sum(_tokens(message) for message in found[chosen[0] :])
    if removed * cached_share * turns_ahead <= after * (1 - cached_share):
        return None
    return found


def _is_long_result(message: Any) -> bool:
    if not isinstance(message, dict) or len(text_of(message)) < _MIN_CHARS:
        return False
    blocks = message.get("content")
    inside = isinstance(blocks, list) and any(
        isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks
    )
    return role_of(message) in ("tool", "function", "function_call_output") or inside


def _cleared(message: Any) -> Any:
    if "output" in message:
        return {**message, "output": CLEARED}
    blocks = message["content"]
    if isinstance(blocks, list) and any(isinstance(block, dict) and "tool_use_id" in block for block in blocks):
        return {**message, "content": [_cleared_block(block) for block in blocks]}
    return {**message, "content": CLEARED}


def _cleared_block(block: Any) -> Any:
    return {**block, "content": CLEARED} if isinstance(block, dict) and block.get("type") == "tool_result" else block


def _tokens(message: Any) -> float:
    return len(text_of(message)) / BYTES_PER_TOKEN
