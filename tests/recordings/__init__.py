"""Recorded sessions of real programs in the dialect that they speak: words of prose are masked, all else is as sent.

Recorded on 2026-11-21 against a mock server: `claude` is Claude Code 2.1.197 (`-p`, then `-c -p` after a file has
changed), `oc_anthropic` is OpenCode 1.18.33 over Anthropic's messages, its title first. `codex` is Codex 0.169.0
(`exec`, then `exec resume`), `oc_openai` is OpenCode over OpenAI's Responses, its title first, `gemini` is Gemini CLI
0.61.0. Where the mask took a word of the API itself (`tool_choice`, `include`, `summary`, `verbosity`, Gemini CLI's
placeholder of a signature), what the program sends stands there again.

`codex_websocket`, `copilot_websocket` and `opencode_websocket` are Codex 0.169.0, Copilot CLI 1.0.102 and OpenCode
1.18.33 over WebSockets, through the proxy, on 2026-11-27. Each starts a sub-agent. A connection of the main agent is
cut when a turn has been sent on it, and the program connects again.
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


class RecordedTurn(NamedTuple):
    """A turn on a WebSocket: a number for its connection, the headers that offered that, without those of the protocol,
    the message, and the items of the answer; None where the connection was cut.
    """

    connection: int
    headers: dict[str, str]
    message: dict[str, Any]
    response_id: str | None
    output: list[dict[str, Any]] | None


def recorded(name: str) -> list[Recorded]:
    """The requests of a session, in their order."""
    return [Recorded(**found) for found in _lines(name)]


def recorded_turns(name: str) -> list[RecordedTurn]:
    """The turns of a session on WebSockets, in their order."""
    return [RecordedTurn(**found) for found in _lines(name)]


def _lines(name: str) -> list[dict[str, Any]]:
    return list(map(json.loads, lzma.decompress((_FOLDER / f"{name}.jsonl.xz").read_bytes()).splitlines()))
