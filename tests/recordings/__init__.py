"""Recorded sessions of real programs in the dialect that they speak: words of prose are masked, all else is as sent.

Recorded on 2026-11-21 against a mock server: `claude` is Claude Code 2.1.197 (`-p`, then `-c -p` after a file has
changed), `oc_anthropic` is OpenCode 1.18.33 over Anthropic's messages, its title first. `codex` is Codex 0.169.0
(`exec`, then `exec resume`), `oc_openai` is OpenCode over OpenAI's Responses, its title first, `gemini` is Gemini CLI
0.61.0. Where the mask took a word of the API itself (`tool_choice`, `include`, `summary`, `verbosity`, Gemini CLI's
placeholder of a signature), what the program sends stands there again.
"""

import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

_FOLDER = Path(__file__).parent


class Recorded(NamedTuple):
    """One request: its path with the query, its headers with names in lower case, its body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def recorded(name: str) -> list[Recorded]:
    """The requests of a session, in their order."""
    lines = lzma.decompress((_FOLDER / f"{name}.jsonl.xz").read_bytes()).splitlines()
    return [Recorded(found["path"], found["headers"], found["body"]) for found in map(json.loads, lines)]
