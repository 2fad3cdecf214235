"""What a stream adds up to, as the client libraries of each API read it; and the checks of what they rely on.

Independent of the proxy's translators: events in, the whole answer of the API out. `AssertionError` where the order of
events is none that a client library takes.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

Json = dict[str, Any]


def events(text: str) -> Iterator[tuple[str, str]]:
    """The name and the data of each event; comments are left out."""
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        fields = [line.partition(": ") for line in lines]
        data = "\n".join(value for name, _, value in fields if name == "data")
        if data:
            yield next((value for name, _, value in fields if name == "event"), ""), data


def failed(api: str, text: str) -> bool:
    """Whether a stream ends with an error."""
    found = [json.loads(data) for _, data in events(text) if data != "[DONE]"]
    if not found:
        return True
    last = found[-1]
    if api == "messages":
        return bool(last["type"] == "error")
    return bool(last["type"] == "response.failed") if api == "responses" else "error" in last


def of_chat(text: str) -> Json:
    """A chat completion."""
    data = [data for _, data in events(text)]
    assert data[-1] == "[DONE]", "a stream ends with [DONE]"
    message: Json = {}
    calls: dict[int, Json] = {}
    found: Json = {"finish_reason": None, "usage": None}
    for chunk in map(json.loads, data[:-1]):
        if chunk.get("usage") and not chunk.get("choices"):
            found["usage"] = chunk["usage"]
        for choice in chunk.get("choices") or ():
            found["finish_reason"] = choice.get("finish_reason") or found["finish_reason"]
            for name, value in choice.get("delta", {"content": choice.get("text")}).items():
                if name == "tool_calls":
                    for call in value or ():
                        _add_call(calls, call)
                elif isinstance(value, str) and name != "role":
                    message[name] = message.get(name, "") + value
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {**found, "message": {name: value for name, value in message.items() if value}}


def _add_call(calls: dict[int, Json], piece: Json) -> None:
    call = calls.setdefault(piece.get("index", 0), {"id": None, "function": {"name": "", "arguments": ""}})
    call["id"] = call["id"] or piece.get("id")
    for name, value in (piece.get("function") or {}).items():
        call["function"][name] = call["function"].get(name, "") + (value or "")
    if "extra_content" in piece:
        call["extra_content"] = piece["extra_content"]


def chat_of_whole(reply: Json) -> Json:
    """The same of a whole answer."""
    choice = reply["choices"][0]
    if "text" in choice:
        message: Json = {"content": choice["text"]}
    else:
        message = {name: value for name, value in choice["message"].items() if value and name != "role"}
    calls = message.get("tool_calls")
    if calls:
        message["tool_calls"] = [
            {name: value for name, value in call.items() if name not in {"type", "index"}} for call in calls
        ]
    return {"finish_reason": choice.get("finish_reason"), "usage": reply.get("usage"), "message": message}


def of_messages(text: str) -> Json:
    """A message."""
    found: Json = {}
    blocks: list[Json] = []
    is_open = False
    names = []
    for name, data in events(text):
        event = json.loads(data)
        assert name == event["type"], "the name of an event is its type"
        names.append(name)
        if name == "message_start":
            found = {key: value for key, value in event["message"].items() if key != "usage"}
            start = event["message"]["usage"]
        elif name == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks), "blocks are numbered from 0"
            is_open = True
            blocks.append({**event["content_block"]})
        elif name == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            _add_delta(blocks[-1], event["delta"])
        elif name == "content_block_stop":
            assert is_open
            is_open = False
        elif name == "message_delta":
            found |= event["delta"] | {"usage": event["usage"]}
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    for key in ("input_tokens", "cache_read_input_tokens"):
        assert start[key] in {0, None, found["usage"][key]}, "a message starts with no tokens or with those of its end"
    for block in blocks:
        if "json" in block:
            given = block.pop("json")
            try:
                block["input"] = json.loads(given)
            except ValueError:  # cut by a limit
                block["input"] = {"arguments": given}
    return in_order({**found, "content": blocks})


def _add_delta(block: Json, delta: Json) -> None:
    kind = {
        "text_delta": "text",
        "thinking_delta": "thinking",
        "signature_delta": "signature",
        "input_json_delta": "partial_json",
    }[delta["type"]]
    assert block["type"] == {"partial_json": "tool_use", "signature": "thinking"}.get(kind, kind)
    name = "json" if kind == "partial_json" else kind
    block[name] = block.get(name, "") + delta[kind]


def of_responses(text: str) -> Json:
    """A response."""
    done: dict[int, Json] = {}
    texts: dict[str, str] = {}
    last: Json = {}
    for number, (name, data) in enumerate(events(text)):
        event = last = json.loads(data)
        assert name == event["type"]
        assert event["sequence_number"] == number, "events are numbered from 0"
        if name.endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif name == "response.output_item.added":
            assert event["output_index"] == len(done), "one item after the other"
        elif name == "response.output_item.done":
            done[event["output_index"]] = event["item"]
    response: Json = last["response"]
    assert response["output"] == [done[index] for index in sorted(done)], (
        "the items of the end are those that were done"
    )
    for item in response["output"]:
        parts = item.get("content") or item.get("summary") or [{"text": item.get("arguments", item.get("input", ""))}]
        said = "".join(part.get("text", part.get("refusal", "")) for part in parts)
        assert texts.get(item["id"], "") == said, "the deltas of an item add up to it"
    return in_order(response)


def of_gemini(text: str) -> Json:
    """A whole answer."""
    parts: list[Json] = []
    found: Json = {}
    for _, data in events(text):
        chunk = json.loads(data)
        candidate = chunk["candidates"][0]
        for part in candidate["content"]["parts"]:
            alike = parts and set(part) == set(parts[-1]) <= {"text", "thought"}
            if alike:
                parts[-1] = {**part, "text": parts[-1]["text"] + part["text"]}
            elif part != {"text": ""}:
                parts.append(part)
        found = {**chunk, "candidates": [{**candidate, "content": {"parts": parts, "role": "model"}}]}
    return found


def gemini_of_whole(reply: Json) -> Json:
    """The same of a whole answer, in which an empty part says nothing."""
    candidate = reply["candidates"][0]
    kept = [part for part in candidate["content"]["parts"] if part != {"text": ""}]
    return {**reply, "candidates": [{**candidate, "content": {"parts": kept, "role": "model"}}]}


def in_order(found: Json) -> Json:
    """A message or a response with its texts as one, in front of its calls: what a stream says comes as it comes."""
    name = "content" if "content" in found else "output"
    parts = found[name]
    texts = [part for part in parts if part["type"] in {"text", "message"}]
    if not texts:
        return found
    first = json.loads(json.dumps(texts[0]))
    (first if name == "content" else first["content"][0])["text"] = "".join(map(_text_of, texts))
    thoughts = [part for part in parts if part["type"] in {"thinking", "reasoning"}]
    others = [part for part in parts if part not in texts and part not in thoughts]
    return {**found, name: [*thoughts, first, *others]}


def _text_of(part: Json) -> str:
    return str(
        part.get("text", "") if "text" in part else part["content"][0].get("text", part["content"][0].get("refusal"))
    )


FOLDS: Final[dict[str, tuple[Callable[[str], Json], Callable[[Json], Json]]]] = {
    "chat": (of_chat, chat_of_whole),
    "completions": (of_chat, chat_of_whole),
    "messages": (of_messages, in_order),
    "responses": (of_responses, in_order),
    "gemini": (of_gemini, gemini_of_whole),
}
