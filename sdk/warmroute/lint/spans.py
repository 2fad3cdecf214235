"""Reads OpenTelemetry spans of generative AI as requests.

The attributes are those of the semantic conventions (opentelemetry.io/docs/specs/semconv/gen-ai). An attribute holds
messages, system instructions or tools as a text of JSON or as a structured value. A span without messages is skipped,
because its prompt cannot be compared. Instrumentations record messages only if they are configured to.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from warmroute.contract.usage import counts_of
from warmroute.files.documents import DocumentError, json_of
from warmroute.files.otlp import attributes_of


class SpanRequest(NamedTuple):
    session: str | None
    body: Mapping[str, Any]
    usage: Mapping[str, Any] | None
    time_s: float | None


def is_span(record: Mapping[str, Any]) -> bool:
    return "attributes" in record and any(
        name in record for name in ("name", "spanId", "span_id", "traceId", "context")
    )


def request_of_span(span: Mapping[str, Any]) -> SpanRequest | None:
    """The request of a span; None for a span without messages."""
    found = attributes_of(span.get("attributes"))
    messages = _parsed(found.get("gen_ai.input.messages", found.get("gen_ai.prompt")))
    if not isinstance(messages, list):
        return None
    body: dict[str, Any] = {"model": found.get("gen_ai.request.model")}
    system = _parsed(found.get("gen_ai.system_instructions"))
    if system:
        body["system"] = [_block(each) for each in system] if isinstance(system, list) else system
    tools = _parsed(found.get("gen_ai.tool.definitions"))
    if isinstance(tools, list):
        body["tools"] = tools
    body["messages"] = [_message(message) for message in messages]
    session = found.get("gen_ai.conversation.id", found.get("session.id"))
    usage = None if counts_of(found).prompt is None else found
    return SpanRequest(None if session is None else str(session), body, usage, _time_s(span))


def _parsed(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json_of(value.encode("utf-8", "surrogatepass"))
    except DocumentError:
        return value


def _message(message: object) -> object:
    if not isinstance(message, Mapping) or not isinstance(message.get("parts"), list):
        return message
    return {"role": message.get("role"), "content": [_block(each) for each in message["parts"]]}


def _block(block: object) -> object:
    """A part of a request, from a part of a span's message such as `{"type": "text", "content": ...}`."""
    if isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("content"), str):
        return {"type": "text", "text": block["content"]}
    return block


def _time_s(span: Mapping[str, Any]) -> float | None:
    start = span.get("startTimeUnixNano", span.get("start_time_unix_nano"))
    try:
        return int(start) / 1e9 if start is not None else None
    except (TypeError, ValueError):
        return None
