"""Depth of raw JSON, found without building objects.

Engines compile JSON schemas into grammars, and render templates with nested arguments. Their cost grows with size and
depth, and a recursive compiler ends its process at a depth that a parser still accepts.

A schema or a list of tools has hundreds of kilobytes at times, so the steps are those of bytes objects: without its
strings and everything but brackets, a JSON text loses its innermost level by each removal of the empty pairs.
"""

from warmroute_proxy.dialects.work import brackets_of


def is_deeper(raw: bytes, levels: int) -> bool:
    """Whether arrays and objects of a valid JSON text nest deeper: a scalar has no level, `[1]` has one."""
    brackets = brackets_of(raw).replace(b"[", b"{").replace(b"]", b"}")
    for _ in range(levels):
        if not brackets:
            return False
        brackets = _without_innermost(brackets)
    return bool(brackets)


def _without_innermost(brackets: bytes) -> bytes:
    """Remove each pair that holds nothing, its neighbours too, and nothing that is around them."""
    return brackets.replace(b"{}", b"")
