"""OpenTelemetry spans of generative AI, read as requests.

The attributes are those of the semantic conventions (opentelemetry.io/docs/specs/semconv/gen-ai): messages, system
instructions and tools are JSON, as an attribute's text or as a value. A span without messages cannot be compared, since
instrumentations leave them out unless they are told to record them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from warmroute.files.documents import DocumentError, json_of


class SpanRequest(NamedTuple):
    """The request of one span."""

    session: str | None
    body: Mapping[str, Any]
    usage: Mapping[str, Any] | None
    time_s: float | None


def spans_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The spans of an OTLP export; an empty list of anything else."""
    return list(_spans(record)) if "resourceSpans" in record else []


def is_span(record: Mapping[str, Any]) -> bool:
    """Whether a record is a span."""
    return "attributes" in record and any(
        name in record for name in ("name", "spanId", "span_id", "traceId", "context")
    )


def request_of_span(span: Mapping[str, Any]) -> SpanRequest | None:
    """The request of a span, or None for a span of something else."""
    found = _attributes(span.get("attributes"))
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
    return SpanRequest(None if session is None else str(session), body, _usage(found), _time_s(span))


def _spans(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in _objects(record.get("resourceSpans")):
        for scope in _objects(resource.get("scopeSpans")):
            yield from _objects(scope.get("spans"))


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in value if isinstance(each, Mapping)) if isinstance(value, list) else iter(())


def _attributes(value: object) -> dict[str, Any]:
    """Attributes as a mapping, from OTLP's list of keys and typed values too."""
    if isinstance(value, Mapping):
        return dict(value)
    return {str(pair["key"]): _value(pair.get("value")) for pair in _objects(value) if "key" in pair}


def _value(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    for name in ("stringValue", "doubleValue", "boolValue"):
        if name in value:
            return value[name]
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(item) for item in _values(value["arrayValue"])]
    if "kvlistValue" in value:
        return _attributes(_values(value["kvlistValue"]))
    return None


def _values(value: object) -> list[Any]:
    found = value.get("values") if isinstance(value, Mapping) else None
    return found if isinstance(found, list) else []


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
    """A part of the conventions, `{"type": "text", "content": ...}`, as one of a request."""
    if isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("content"), str):
        return {"type": "text", "text": block["content"]}
    return block


def _usage(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    prompt = found.get("gen_ai.usage.input_tokens")
    if not isinstance(prompt, int):
        return None
    cached = found.get("gen_ai.usage.cache_read.input_tokens")
    details = {"cached_tokens": cached} if isinstance(cached, int) else {}
    completion = found.get("gen_ai.usage.output_tokens", 0)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}


def _time_s(span: Mapping[str, Any]) -> float | None:
    start = span.get("startTimeUnixNano", span.get("start_time_unix_nano"))
    try:
        return int(start) / 1e9 if start is not None else None
    except (TypeError, ValueError):
        return None
