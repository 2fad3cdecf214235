"""Patterns of texts that are new in each request: ids, paths and memory files. The SDK and the proxy share them."""

import re
from collections.abc import Sequence
from typing import Final

MAX_SECTION_LINES: Final = 200
MAX_LINE_CHARS: Final = 2_000

NONCE: Final = re.compile(
    r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b"
    r"|\b(?:req|run|id|nonce|trace|msg|ses|call)[-_][0-9A-Za-z]{6,64}\b|(?<=[=:])[0-9a-f]{5,64}\b"
)
"""Ids. Five or six hexadecimal digits count as an id only after `=` or `:`, because they may be a mere number."""

PATH: Final = re.compile(r"(?<![\w/<])(?:~|\.{1,2})?(?:/[\w.@+~-]+)+/?|\b[A-Za-z]:\\[^\s\"'<>|]*")
"""Paths of files; the end of a tag, `</name>`, is not a path."""

_MEMORY_FILE: Final = re.compile(r"(?i)\b(?:AGENTS|CLAUDE|GEMINI|QWEN|MEMORY|CONVENTIONS|copilot-instructions)\.md\b")
_OTHER_SECTION: Final = re.compile(r"^</?[a-z_-]+>")


def ends_in_memory_file(lines: Sequence[str]) -> bool:
    """Whether one of the last `MAX_SECTION_LINES` lines names a memory file, and no other section begins after it."""
    for line in reversed(lines[-MAX_SECTION_LINES:]):
        if _MEMORY_FILE.search(line[:MAX_LINE_CHARS]):
            return True
        if _OTHER_SECTION.match(line) and "instructions" not in line.lower():
            return False
    return False
