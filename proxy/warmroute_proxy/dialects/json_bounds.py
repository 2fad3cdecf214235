"""Size and depth of raw JSON, found without building objects.

Engines compile JSON schemas into grammars, and render templates with nested arguments. Their cost grows with size and
depth, and a recursive compiler ends its process at a depth that a parser still accepts.
"""

import re
from typing import Final

_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
"""Strings, so that brackets inside them do not count, and brackets."""


def depth_of(raw: bytes) -> int:
    """Return how deep arrays and objects of a valid JSON text nest: 0 for a scalar, 1 for `[1]`."""
    depth = deepest = 0
    for found in _MARKS.finditer(raw):
        mark = raw[found.start()]
        if mark in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in b"]}":
            depth -= 1
    return deepest
