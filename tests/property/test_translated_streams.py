"""Streams in OpenAI's Responses and Gemini's API: however a chat stream is cut, its events are the same and add up."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.dialects.chat_stream import ChatStream
from warmroute_proxy.dialects.gemini.answer import AnswerTerms
from warmroute_proxy.dialects.gemini.answer import whole as gemini_whole
from warmroute_proxy.dialects.gemini.events import EventTranslator as GeminiEvents
from warmroute_proxy.dialects.responses.answer import Response
from warmroute_proxy.dialects.responses.answer import whole as responses_whole
from warmroute_proxy.dialects.responses.events import EventTranslator as ResponseEvents
from warmroute_proxy.dialects.responses.request import chat_request
from warmroute_proxy.normalising.texts import Texts
from warmroute_proxy.server.base.sealing import Seal

SEAL = Seal(b"k" * 32)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
PIECES = st.lists(TEXTS, max_size=4)
TOOLS = [{"type": "function", "name": "read"}, {"type": "custom", "name": "patch"}]
USAGE = {
    "prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}, "reasoning_tokens": 2
}  # fmt: skip


class Said:
    """What a model says: pieces of its reasoning and its text, and its calls."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.reasoning, self.text = draw(PIECES), draw(PIECES)
        self.calls = [(draw(st.sampled_from(["read", "patch"])), draw(PIECES)) for _ in range(draw(st.integers(0, 3)))]
        self.reason = "tool_calls" if self.calls else draw(st.sampled_from(["stop", "length"]))

    def stream(self) -> bytes:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in self.reasoning]
        deltas += [{"reasoning_content": None, "content": piece} for piece in self.text]
        for at, (name, arguments) in enumerate(self.calls):
            deltas.append({"tool_calls": [{"index": at, "id": f"c{at}", "function": {"name": name, "arguments": ""}}]})
            deltas += [{"tool_calls": [{"index": at, "function": {"arguments": piece}}]} for piece in arguments]
        choices: list[Any] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        chunks = [{"id": "r", "choices": found} for found in choices]
        chunks.append({"id": "r", "choices": [{"index": 0, "delta": {}, "finish_reason": self.reason}]})
        chunks.append({"id": "r", "choices": [], "usage": USAGE})
        lines = [f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n" for chunk in chunks]
        return "".join([": the prompt is being computed\n\n", *lines, "data: [DONE]\n\n"]).encode()

    def whole(self) -> bytes:
        calls = [
            {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
            for at, (name, arguments) in enumerate(self.calls)
        ]
        message = {
            "role": "assistant", "content": "".join(self.text) or None,
            "reasoning_content": "".join(self.reasoning) or None, "tool_calls": calls,
        }  # fmt: skip
        return json.dumps({"choices": [{"message": message, "finish_reason": self.reason}], "usage": USAGE}).encode()


@st.composite
def answers(draw: st.DrawFn) -> Said:
    return Said(draw)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(ends)]


def fed(translator: ChatStream, parts: list[bytes]) -> bytes:
    out = b"".join([translator.feed(part) for part in parts])
    assert translator.ended
    return out


def response(summarised: bool) -> Response:
    asked = {"model": "m", "input": "x", "tools": TOOLS, "reasoning": {"summary": "auto" if summarised else None}}
    return Response("r", 7, chat_request(json.dumps(asked).encode(), SEAL, lambda _: Texts(frozenset())), SEAL.seal)


@given(answers(), st.lists(st.integers(0, 10_000), max_size=6), st.booleans())
def test_a_response_adds_up(said: Said, places: list[int], summarised: bool) -> None:
    stream, asked = said.stream(), response(summarised)
    out = fed(ResponseEvents(asked), cut(stream, places))
    assert out == fed(ResponseEvents(asked), [stream])
    events = [json.loads(block.split("\ndata: ")[1]) for block in out.decode().split("\n\n") if "\ndata: " in block]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert last == json.loads(responses_whole(said.whole(), asked))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in done]
    grown: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            grown[event["item_id"]] = grown.get(event["item_id"], "") + event["delta"]
    assert [grown.get(item["id"], "") for item in done] == [shown(item) for item in done]


def shown(item: dict[str, Any]) -> str:
    """The text that an item's deltas make."""
    if item["type"] == "reasoning":
        [piece] = item["summary"] or item["content"]
    elif item["type"] == "message":
        [piece] = item["content"]
    else:
        piece = {"text": item["input"] if item["type"] == "custom_tool_call" else item["arguments"]}
    text: str = piece["text"]
    return text


@given(answers(), st.lists(st.integers(0, 10_000), max_size=6), st.booleans(), st.booleans())
def test_contents_add_up(said: Said, places: list[int], array: bool, shows: bool) -> None:
    stream, asked = said.stream(), AnswerTerms("r", "m", shows, SEAL.seal)
    out = fed(GeminiEvents(asked, array=array), cut(stream, places))
    assert out == fed(GeminiEvents(asked, array=array), [stream])
    chunks = (
        json.loads(out)
        if array
        else [json.loads(line[6:]) for line in out.decode().split("\n") if line[:6] == "data: "]
    )
    whole = json.loads(gemini_whole(said.whole(), asked))
    pieces = [piece for chunk in chunks for piece in chunk["candidates"][0]["content"]["parts"]]
    candidate = whole["candidates"][0]
    for thought in (True, False):
        made, once = (
            "".join(piece["text"] for piece in found if "text" in piece and piece.get("thought", False) == thought)
            for found in (pieces, candidate["content"]["parts"])
        )
        assert made == once
    assert [piece for piece in pieces if "functionCall" in piece] == [
        piece for piece in candidate["content"]["parts"] if "functionCall" in piece
    ]
    assert chunks[-1]["candidates"][0]["finishReason"] == candidate["finishReason"]
    assert chunks[-1]["usageMetadata"] == whole["usageMetadata"]


def test_items_of_a_stream_that_thinks_again_have_ids_of_their_own() -> None:
    deltas = [{"reasoning_content": "a"}, {"content": "b"}, {"reasoning_content": "c"}, {"content": "d"}]
    chunks = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
    stream = "".join([f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"]]).encode()
    out = fed(ResponseEvents(response(summarised=False)), [stream])
    last = json.loads(out.decode().split("\n\n")[-2].split("\ndata: ")[1])["response"]
    assert [item["type"] for item in last["output"]] == ["reasoning", "message"] * 2
    assert len({item["id"] for item in last["output"]}) == 4
