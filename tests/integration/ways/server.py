"""A server that answers in every dialect, whole and streamed, with usage that has cached tokens.

It is a mock because it stands for vendors that cannot be called here; what the libraries make of it is theirs.
"""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.subjects.http_server import QuietServer

PROMPT_TOKENS, CACHED_TOKENS, COMPLETION_TOKENS = 1000, 900, 5


class Vendor:
    """What was sent to the server, and where it listens."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.gzips = False
        self.breaks = False
        self.refuses = ""
        self.url = ""

    @property
    def last(self) -> tuple[str, dict[str, str], dict[str, Any]]:
        """Path, headers and body of the newest request."""
        return self.seen[-1]


class Handler(BaseHTTPRequestHandler):
    """Answers for a `Vendor`."""

    protocol_version = "HTTP/1.1"
    vendor: Vendor

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""

    def do_POST(self) -> None:
        """A turn of the dialect that the path names."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.partition("?")[0]
        self.vendor.seen.append((path, {name.lower(): value for name, value in self.headers.items()}, body))
        if self.vendor.refuses in body:
            self._send(b"{}", "application/json", 400)
            return
        streamed = bool(body.get("stream")) or "streamGenerateContent" in path
        answers = next(make for end, make in DIALECTS.items() if end in path)
        answered = any(message.get("role") == "tool" for message in body.get("messages", ()))
        events = answers(streamed, has_tools=bool(body.get("tools")) and not answered)
        if self.vendor.breaks:
            events[1:] = [{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}]
        if streamed:
            lines = [
                (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"
                for event in events
            ]
            self._send("".join(lines).encode() + b"data: [DONE]\n\n" * ("chat" in path), "text/event-stream")
        else:
            self._send(json.dumps(events[0]).encode(), "application/json")

    def _send(self, content: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        if self.vendor.gzips and "gzip" in self.headers.get("accept-encoding", ""):
            content = gzip.compress(content)
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def chat(streamed: bool, *, has_tools: bool) -> list[dict[str, Any]]:
    """Chat completions, which call a tool if there is one, until they have its result."""
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "total_tokens": 1005}
    usage["prompt_tokens_details"] = {"cached_tokens": CACHED_TOKENS}  # type: ignore[assignment]
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    base = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk" if streamed else "chat.completion"}
    choice = {"index": 0, "finish_reason": "tool_calls" if has_tools else "stop"}
    calls = {"content": None, "tool_calls": [call]} if has_tools else {"content": "hello"}
    said = {"role": "assistant", **calls}
    if streamed:
        return [{**base, "choices": [{**choice, "delta": said}]}, {**base, "choices": [], "usage": usage}]
    return [{**base, "choices": [{**choice, "message": said}], "usage": usage}]


def messages(streamed: bool, *, has_tools: bool) -> list[dict[str, Any]]:
    """Anthropic's messages, which count cached tokens outside of input tokens."""
    usage = {"input_tokens": 60, "cache_read_input_tokens": CACHED_TOKENS, "cache_creation_input_tokens": 40}
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    base = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "stop_sequence": None}
    if not streamed:
        ended = {"content": [use], "stop_reason": "tool_use", "usage": {**usage, "output_tokens": COMPLETION_TOKENS}}
        return [{**base, **ended}]
    start: dict[str, Any] = {**base, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": COMPLETION_TOKENS}},
        {"type": "message_stop"},
    ]


def responses(streamed: bool, *, has_tools: bool) -> list[dict[str, Any]]:
    """The Responses API."""
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": COMPLETION_TOKENS, "total_tokens": 1005}
    usage["input_tokens_details"] = {"cached_tokens": CACHED_TOKENS}  # type: ignore[assignment]
    usage["output_tokens_details"] = {"reasoning_tokens": 0}  # type: ignore[assignment]
    call = {
        "type": "function_call",
        "id": "f",
        "call_id": "c",
        "name": "look",
        "arguments": "{}",
        "status": "completed",
    }
    whole = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [call], "status": "completed"}
    whole |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    if not streamed:
        return [{**whole, "usage": usage}]
    begun = {**whole, "output": [], "status": "in_progress"}
    return [
        {"type": "response.created", "sequence_number": 0, "response": begun},
        {"type": "response.completed", "sequence_number": 1, "response": {**whole, "usage": usage}},
    ]


def gemini(_streamed: bool, *, has_tools: bool) -> list[dict[str, Any]]:
    """Gemini's generateContent."""
    usage = {"promptTokenCount": PROMPT_TOKENS, "cachedContentTokenCount": CACHED_TOKENS}
    usage |= {"candidatesTokenCount": COMPLETION_TOKENS, "totalTokenCount": 1005}
    content = {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]}
    return [{"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}]


DIALECTS = {"/completions": chat, "/messages": messages, "/responses": responses, "enerateContent": gemini}


@contextmanager
def serving() -> Iterator[Vendor]:
    """A server on a port of its own."""
    vendor = Vendor()
    http = QuietServer(("127.0.0.1", 0), type("Bound", (Handler,), {"vendor": vendor}))
    vendor.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield vendor
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
