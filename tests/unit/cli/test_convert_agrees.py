"""The samples of the demo have the prompts that the proxy would make of the same recordings."""

import json
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.recordings import Recorded, recorded

from warmroute_proxy.dialects.gemini.request import chat_request as gemini
from warmroute_proxy.dialects.messages.request import chat_request as messages
from warmroute_proxy.dialects.responses.request import chat_request as responses
from warmroute_proxy.normalising.texts import Texts
from warmroute_proxy.server.base.sealing import Seal

SEAL = Seal(b"k" * 32)


def texts_of(_: str) -> Texts:
    return Texts(frozenset())


def translated(turn: Recorded) -> dict[str, Any]:
    raw = json.dumps(turn.body, ensure_ascii=False, separators=(",", ":")).encode()
    if "/messages" in turn.path:
        body = messages(raw, SEAL.key, texts_of).body
    elif "/responses" in turn.path:
        body = responses(raw, SEAL, texts_of).body
    else:
        body = gemini(raw, "m", SEAL, texts_of("m"), streams=True).body
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


def alike(message: dict[str, Any]) -> tuple[Any, ...]:
    """A message as a template renders it: texts without the parts that they stand in."""
    content = message["content"] or ""
    text = content if isinstance(content, str) else "".join(piece["text"] for piece in content)
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    return message["role"], text, message.get("reasoning_content"), calls


@pytest.mark.parametrize("name", ["claude", "oc_anthropic", "codex", "oc_openai", "gemini"])
def test_a_recording_has_one_translation(convert: ModuleType, name: str) -> None:
    for turn in recorded(name):
        ours, sample = translated(turn), convert.convert_request(turn.path, turn.body)
        assert [alike(message) for message in ours["messages"]] == [alike(message) for message in sample["messages"]]
        names = [tool["function"]["name"] for tool in sample.get("tools", ())]
        dropped = {"web_search"}  # a tool of OpenAI's, which the sample keeps by its type
        assert [tool["function"]["name"] for tool in ours.get("tools", ())] == [n for n in names if n not in dropped]
