#!/usr/bin/env python3
"""Converts recorded agent sessions to the samples that the demo replays. It is run only when the recordings change.

    scripts/convert_sessions.py [RECORDINGS] [SAMPLES]

A recording (`<name>.jsonl`, one request a line, in the API that the agent program, the harness, used) becomes a sample
(`<name>.json.gz`): chat-completions bodies in template order (model, tools, messages with the system text first, then
the other fields), with all headers of the recording except those of credentials and transport.

How requests of each API are converted:

    Anthropic messages   `system` blocks -> one system message; `tool_use` -> `tool_calls`; `tool_result` -> a `tool`
                         message; `thinking` -> `reasoning_content`; `cache_control` stays where it was
    OpenAI Responses     leading `developer` items -> system messages; `function_call` and its output -> `tool_calls`
                         and a `tool` message; item ids are dropped, since they are not part of a prompt; names of tools
                         in a `namespace` are prefixed with its name
    Gemini               `systemInstruction` -> a system message; `functionCall` -> `tool_calls`, `functionResponse` ->
                         a `tool` message; thoughts -> `reasoning_content`, without their signatures

A turn repeats what the turns before it sent. So a sample keeps each distinct message and each distinct tool once, in a
table of parts, and requests refer to the table: otherwise the samples would be ten times larger. The output is
deterministic: equal recordings give equal bytes.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

HARNESSES = {"aider": "aider", "claude": "claude-code", "codex": "codex", "gemini": "gemini", "mswe": "mini-swe-agent"}
"""Name of a recording -> its harness. All other recordings, whose names begin with `oc_`, are OpenCode's."""

DROPPED_HEADERS = frozenset(
    {
        *("authorization", "cookie", "x-api-key", "x-goog-api-key"),
        *("accept-encoding", "accept-language", "connection", "content-length", "host", "keep-alive"),
        *("sec-fetch-mode", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers with credentials, and headers that belong to the connection and not to the request."""

CHAT_FIELDS = ("model", "tools", "messages")
CHOICES = frozenset({"auto", "none", "required"})


def convert_request(path: str, body: Json) -> Json:
    """The chat-completions body of a recorded request, in template order."""
    if "/messages" in path:
        return from_anthropic(body)
    if "/responses" in path:
        return from_responses(body)
    if "generatecontent" in path.lower():
        return from_gemini(path, body)
    return in_template_order(body)


def in_template_order(body: Json) -> Json:
    """A body with model, tools and messages before all other fields; absent fields stay absent."""
    ordered = {name: body[name] for name in CHAT_FIELDS if body.get(name)}
    ordered |= {name: value for name, value in body.items() if name not in ordered}
    if isinstance(ordered.get("tool_choice"), str):
        ordered["tool_choice"] = tool_choice(ordered["tool_choice"])
    return ordered


def tool_choice(choice: object) -> str:
    """The choice, or `auto` if masking has removed it from the recording, since each harness here sends `auto`."""
    return choice if isinstance(choice, str) and choice in CHOICES else "auto"


# Anthropic messages


def from_anthropic(body: Json) -> Json:
    messages: list[Json] = []
    if body.get("system"):
        messages.append({"role": "system", "content": body["system"]})
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, str):
            messages.append({"role": message["role"], "content": content})
        elif message["role"] == "assistant":
            messages.append(_anthropic_assistant(content))
        else:
            messages.extend(_anthropic_user(content))
    chat: Json = {"model": body["model"], "messages": messages}
    if body.get("tools"):
        chat["tools"] = [_anthropic_tool(tool) for tool in body["tools"]]
    if "tool_choice" in body:
        chat["tool_choice"] = tool_choice(body["tool_choice"].get("type"))
    kept = ("max_tokens", "temperature", "top_p", "metadata", "stream")
    return in_template_order(chat | {name: body[name] for name in kept if name in body})


def _anthropic_tool(tool: Json) -> Json:
    converted = _function_tool(tool["name"], tool.get("description"), tool["input_schema"])
    return converted | _cache_control(tool)


def _anthropic_assistant(blocks: list[Json]) -> Json:
    message: Json = {"role": "assistant"}
    texts = [block for block in blocks if block["type"] == "text"]
    message["content"] = texts or None
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    calls = [
        _tool_call(block["id"], block["name"], _compact(block["input"])) | _cache_control(block)
        for block in blocks
        if block["type"] == "tool_use"
    ]
    if calls:
        message["tool_calls"] = calls
    return message


def _anthropic_user(blocks: list[Json]) -> Iterable[Json]:
    """The messages of a user message that may have both results of tools and text: a `tool` message for each result,
    then the text.
    """
    for block in blocks:
        if block["type"] == "tool_result":
            content = block.get("content", "")
            marker = _cache_control(block)
            if marker and isinstance(content, str):
                content = [{"type": "text", "text": content} | marker]
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}
    rest = [block for block in blocks if block["type"] != "tool_result"]
    if rest:
        yield {"role": "user", "content": rest}


def _cache_control(block: Json) -> Json:
    return {"cache_control": block["cache_control"]} if "cache_control" in block else {}


# OpenAI Responses


def from_responses(body: Json) -> Json:
    messages: list[Json] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in body["input"]:
        _append_item(messages, item)
    chat: Json = {"model": body["model"], "messages": messages}
    if body.get("tools"):
        chat["tools"] = [tool for entry in body["tools"] for tool in _responses_tools(entry)]
    if "tool_choice" in body:
        chat["tool_choice"] = tool_choice(body["tool_choice"])
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    effort = body.get("reasoning", {}).get("effort")
    if effort:
        chat["reasoning_effort"] = effort
    kept = ("parallel_tool_calls", "temperature", "top_p", "prompt_cache_key", "metadata", "stream")
    return in_template_order(chat | {name: body[name] for name in kept if name in body})


def _append_item(messages: list[Json], item: Json) -> None:
    kind = item.get("type", "message")
    if kind == "function_call":
        call = _tool_call(item["call_id"], item["name"], item["arguments"])
        if messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    elif kind == "reasoning":
        text = "".join(part["text"] for part in item.get("summary", []))
        messages.append({"role": "assistant", "content": None, "reasoning_content": text})
    else:
        leading = all(message["role"] == "system" for message in messages)
        role = "system" if item["role"] == "developer" and leading else item["role"]
        messages.append({"role": role, "content": _responses_content(item["content"])})


def _responses_content(content: str | list[Json]) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return [_responses_part(part) for part in content]


def _responses_part(part: Json) -> Json:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": part["text"]}


def _responses_tools(tool: Json) -> Iterable[Json]:
    if tool["type"] == "namespace":
        for inner in tool["tools"]:
            yield _function_tool(f"{tool['name']}__{inner['name']}", inner.get("description"), inner.get("parameters"))
    else:
        yield _function_tool(tool.get("name", tool["type"]), tool.get("description"), tool.get("parameters"))


# Gemini


def from_gemini(path: str, body: Json) -> Json:
    """The chat-completions body of a Gemini request, whose path has the model and whether it streams."""
    messages: list[Json] = []
    if body.get("systemInstruction"):
        messages.append({"role": "system", "content": _gemini_texts(body["systemInstruction"]["parts"])})
    for content in body["contents"]:
        messages.extend(_gemini_content(content))
    chat: Json = {"model": path.rpartition("/")[2].partition(":")[0], "messages": messages}
    declarations = [entry for tool in body.get("tools", []) for entry in tool.get("functionDeclarations", [])]
    if declarations:
        chat["tools"] = [
            _function_tool(entry["name"], entry.get("description"), entry.get("parametersJsonSchema"))
            for entry in declarations
        ]
    settings = body.get("generationConfig", {})
    names = {"maxOutputTokens": "max_tokens", "temperature": "temperature", "topP": "top_p"}
    chat |= {ours: settings[theirs] for theirs, ours in names.items() if theirs in settings}
    chat["stream"] = ":stream" in path
    return in_template_order(chat)


def _gemini_content(content: Json) -> Iterable[Json]:
    parts: list[Json] = content["parts"]
    if content["role"] == "model":
        message: Json = {"role": "assistant", "content": _gemini_texts(parts) or None}
        thoughts = "".join(part["text"] for part in parts if part.get("thought"))
        if thoughts:
            message["reasoning_content"] = thoughts
        calls = [
            _tool_call(call["id"], call["name"], _compact(call["args"]))
            for call in (part["functionCall"] for part in parts if "functionCall" in part)
        ]
        if calls:
            message["tool_calls"] = calls
        yield message
        return
    for answer in (part["functionResponse"] for part in parts if "functionResponse" in part):
        yield {"role": "tool", "tool_call_id": answer["id"], "content": _compact(answer["response"])}
    if texts := _gemini_texts(parts):
        yield {"role": "user", "content": texts}


def _gemini_texts(parts: list[Json]) -> list[Json]:
    return [{"type": "text", "text": part["text"]} for part in parts if "text" in part and not part.get("thought")]


# What the dialects share


def _tool_call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _function_tool(name: Any, description: str | None, parameters: Json | None) -> Json:
    function: Json = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def kept_headers(headers: list[list[str]]) -> dict[str, str]:
    """The headers of a request except those of `DROPPED_HEADERS`, with names and order as they were."""
    return {name: value for name, value in headers if name.lower() not in DROPPED_HEADERS}


# Samples


class Parts:
    """The table of distinct messages and tools of one sample."""

    def __init__(self) -> None:
        self.table: list[Json] = []
        self._index: dict[str, int] = {}

    def refer(self, parts: Iterable[Json]) -> list[int]:
        """The positions of parts in the table. New parts are added to it."""
        return [self._position(part) for part in parts]

    def _position(self, part: Json) -> int:
        key = _compact(part)
        if key not in self._index:
            self._index[key] = len(self.table)
            self.table.append(part)
        return self._index[key]


def to_sample(name: str, lines: Iterable[str]) -> Json:
    parts, headers = Parts(), Parts()
    requests = []
    for line in lines:
        recorded = json.loads(line)
        body = convert_request(recorded["path"], recorded["body"])
        request: Json = {"n": recorded["n"], "headers": headers.refer([kept_headers(recorded["headers"])])[0]}
        if "tools" in body:
            request["tools"] = parts.refer(body["tools"])
        request["messages"] = parts.refer(body["messages"])
        request["rest"] = {field: value for field, value in body.items() if field not in {"tools", "messages"}}
        requests.append(request)
    return {
        "name": name,
        "harness": HARNESSES.get(name, "opencode"),
        "headers": headers.table,
        "parts": parts.table,
        "requests": requests,
    }


def compress(sample: Json) -> bytes:
    """The bytes of a sample file, without a time stamp."""
    return gzip.compress(_compact(sample).encode(), compresslevel=9, mtime=0)


def main() -> int:
    """Convert every recording of a directory."""
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recordings", nargs="?", type=Path, default=root.parent / "shared" / "sessions")
    parser.add_argument("samples", nargs="?", type=Path, default=root / "lab" / "warmroute_lab" / "samples")
    arguments = parser.parse_args()
    paths = sorted(arguments.recordings.glob("*.jsonl"))
    if not paths:
        print(f"{arguments.recordings} holds no *.jsonl recordings", file=sys.stderr)
        return 2
    arguments.samples.mkdir(parents=True, exist_ok=True)
    total_bytes = 0
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            sample = to_sample(path.stem, lines)
        data = compress(sample)
        (arguments.samples / f"{path.stem}.json.gz").write_bytes(data)
        total_bytes += len(data)
        print(f"{path.stem}: {len(sample['requests'])} requests, {len(sample['parts'])} parts, {len(data)} bytes")
    print(f"{len(paths)} samples, {total_bytes} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
