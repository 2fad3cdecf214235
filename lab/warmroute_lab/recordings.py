"""The recorded agent sessions that the demo replays, loaded from the packaged samples.

A recording has the requests of one agent session and its sub-agents, in order. Words of prose are masked; everything
else is as it was on the wire: shared prefixes, lengths, tool names, ids, headers. Each body is a chat-completions body
in template order: model, tools, messages with the system text first, then the rest. `scripts/convert_sessions.py` has
converted requests of other APIs to this form.
"""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

_SUFFIX = ".json.gz"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request: its number in the recording, its headers, its chat-completions body."""

    n: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def turn(self) -> int:
        """The turn as receipts count it: assistant messages in the prompt, plus one."""
        return 1 + sum(1 for message in self.body["messages"] if message["role"] == "assistant")


@dataclass(frozen=True, slots=True)
class RecordedSession:
    name: str
    harness: str
    requests: tuple[RecordedRequest, ...]


def load_recordings(harnesses: Iterable[str] = ()) -> list[RecordedSession]:
    """All recordings, or those of the named harnesses, ordered by name."""
    wanted = set(harnesses)
    folder = resources.files("warmroute_lab") / "samples"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))
    loaded = [_recording(json.loads(gzip.decompress((folder / name).read_bytes()))) for name in names]
    return [recording for recording in loaded if not wanted or recording.harness in wanted]


def _recording(sample: dict[str, Any]) -> RecordedSession:
    parts, headers = sample["parts"], sample["headers"]
    requests = (
        RecordedRequest(request["n"], headers[request["headers"]], _body(parts, request))
        for request in sample["requests"]
    )
    return RecordedSession(sample["name"], sample["harness"], tuple(requests))


def _body(parts: list[Any], request: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": request["rest"]["model"]}
    if "tools" in request:
        body["tools"] = [parts[position] for position in request["tools"]]
    body["messages"] = [parts[position] for position in request["messages"]]
    return {**body, **request["rest"]}
