"""Recorded requests, read from files: JSON, JSON lines, either gzipped.

A record is a request's body, or an object that has one: `body` or `request`, with `headers`, and `response`, `reply` or
`usage` where the answer was recorded. The requests of a batch file, HTTP recordings of agents and the samples of this
project are such records. Spans of OpenTelemetry are read by `spans`. Anything else is a `TranscriptError` that says
where.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmroute.contract.identity import InvalidSessionKey, lineage_parts, session_of
from warmroute.lint.spans import is_span, request_of_span, spans_of

MAX_FILE_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Of a file, once it is unpacked."""

_BODIES: Final = ("body", "request", "kwargs")
_ANSWERS: Final = ("response", "reply", "answer", "output")
_PROMPTS: Final = ("messages", "input", "contents", "prompt")
_TIMES: Final = ("t", "time_s", "timestamp", "created")


class TranscriptError(ValueError):
    """A file that holds no recorded requests; the message names the place and the expected format."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded request."""

    session: str
    number: int
    """Its number in the file, from 1, or the one that the record has."""
    body: Mapping[str, Any]
    usage: Mapping[str, Any] | None
    time_s: float | None


def recorded(path: Path) -> Iterator[Recorded]:
    """The requests of a file, in its order."""
    found = False
    for number, record in enumerate(_records(path), 1):
        request = _request(record, number, path)
        if request is not None:
            found = True
            yield request
    if not found:
        raise TranscriptError(
            f"{path}: no request in it. Expected are JSON objects, one a line or in a list, with messages, input, "
            "contents or prompt in them or in their body, or spans of OpenTelemetry."
        )


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a file."""
    text = _text(path)
    try:
        whole = json.loads(text)
    except ValueError:
        yield from _lines(path, text)
        return
    if isinstance(whole, Mapping) and "parts" in whole and "requests" in whole:
        yield from _sample(whole)
        return
    for record in whole if isinstance(whole, list) else [whole]:
        if isinstance(record, Mapping):
            yield from spans_of(record) or [record]


def _lines(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise TranscriptError(f"{path}, line {number}: no JSON: {error}") from None
        if not isinstance(record, Mapping):
            raise TranscriptError(f"{path}, line {number}: an object was expected, not {type(record).__name__}")
        yield from spans_of(record) or [record]


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(path) as unpacked:
                data = unpacked.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TranscriptError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise TranscriptError(f"{path}: is longer than {MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{path}: no UTF-8 at byte {error.start}") from None


def _sample(whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A packaged sample of this project, whose requests share their parts."""
    pieces, headers = whole["parts"], whole["headers"]
    for request in whole["requests"]:
        body = {**request["rest"], "messages": [pieces[at] for at in request["messages"]]}
        if "tools" in request:
            body["tools"] = [pieces[at] for at in request["tools"]]
        yield {"n": request["n"], "headers": headers[request["headers"]], "body": body}


def _request(record: Mapping[str, Any], number: int, path: Path) -> Recorded | None:
    if is_span(record):
        span = request_of_span(record)
        if span is None:
            return None
        return Recorded(span.session or path.stem, number, span.body, span.usage, span.time_s)
    body = next((record[name] for name in _BODIES if isinstance(record.get(name), Mapping)), record)
    if isinstance(body.get("body"), Mapping):  # a recorded HTTP request
        body = body["body"]
    if not any(name in body for name in _PROMPTS):
        return None
    given = record.get("n")
    time_s = next((float(record[name]) for name in _TIMES if isinstance(record.get(name), (int, float))), None)
    session = record.get("session") if isinstance(record.get("session"), str) else None
    name = session or _session(record, body) or path.name.partition(".")[0]
    return Recorded(name, given if isinstance(given, int) else number, body, _usage(record), time_s)


def _session(record: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    headers = _headers(record.get("headers"))
    try:
        found = session_of(headers, body)
    except InvalidSessionKey:
        return None
    if found is None:
        return None
    agent = lineage_parts(headers).agent
    return found.key if not agent or agent == found.key else f"{found.key} {agent}"


def _headers(value: object) -> dict[str, str]:
    pairs = value.items() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return {str(name).lower(): str(text) for name, text in (pair for pair in pairs if len(pair) == 2)}


def _usage(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The usage of the recorded answer, wherever it is."""
    for outer in (record, *(record.get(name) for name in _ANSWERS)):
        for inner in (outer, outer.get("body") if isinstance(outer, Mapping) else None):
            if isinstance(inner, Mapping):
                found = inner.get("usage", inner.get("usageMetadata"))
                if isinstance(found, Mapping):
                    return found
    return None
