"""Reads recorded requests from files of JSON or JSON lines, which may be gzipped.

A record is the body of a request, or an object with the body in `body`, `request` or `kwargs`. The object may also have
`headers`, and the recorded answer in `response`, `reply`, `answer`, `output` or `usage`. The requests of a batch file,
HTTP recordings of agents and the samples of this project are such records. `spans` reads spans of OpenTelemetry. Any
other content raises `TranscriptError` or `UnreadableFile`, which names the place.

Of a file of JSON lines, one line at a time is in memory; any other document, of up to `MAX_DOCUMENT_BYTES`, is read as
a whole.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from warmroute.contract.identity import InvalidSessionKey, lineage_parts, session_of
from warmroute.contract.usage import usage_in
from warmroute.files.documents import DocumentError, json_of
from warmroute.files.given import GivenFile
from warmroute.files.otlp import spans_of
from warmroute.files.printable import printable
from warmroute.lint.spans import is_span, request_of_span

MAX_FILE_BYTES: Final = 2 << 30
"""The maximum size of a file of JSON lines, in unpacked bytes."""

MAX_DOCUMENT_BYTES: Final = 128 << 20
"""The maximum size of a line, and of a file that is one document, in bytes."""

MAX_LINES: Final = 1_000_000
MAX_SESSION_CHARS: Final = 1024
_TOO_LARGE: Final = f"is longer than {MAX_DOCUMENT_BYTES:,} bytes; write one request a line"
_EXPECTED: Final = (
    "Expected are JSON objects, one a line or in a list, with messages, input, contents or prompt in them or in their "
    "body, or spans of OpenTelemetry."
)

_BODIES: Final = ("body", "request", "kwargs")
_ANSWERS: Final = ("response", "reply", "answer", "output")
_PROMPTS: Final = ("messages", "input", "contents", "prompt")
_TIMES: Final = ("t", "time_s", "timestamp", "created")


class TranscriptError(ValueError):
    """A file that holds no recorded requests; the message names the place and the expected format."""


@dataclass(frozen=True, slots=True)
class Recorded:
    session: str
    number: int
    """The request's number in the record; else the position of the record in the file, from 1."""
    body: Mapping[str, Any]
    usage: Mapping[str, Any] | None
    time_s: float | None


def recorded(path: Path) -> Iterator[Recorded]:
    """The requests of a file, in the order of the file. Raises: TranscriptError, UnreadableFile."""
    found = False
    with GivenFile(path, MAX_FILE_BYTES) as file:
        for number, record in enumerate(_records(file), 1):
            try:
                request = _request(record, number, path)
            except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
                # any error counts as a wrong format, since others may have written anything anywhere in a record
                raise TranscriptError(f"{path}, request {number}: is not a request ({error}). {_EXPECTED}") from None
            if request is not None:
                found = True
                yield request
    if not found:
        raise TranscriptError(f"{path}: no request in it. {_EXPECTED}")


def _records(file: GivenFile) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a file: one per line, or, if the first line alone is not JSON, those of a single document."""
    lines = _lines(file)
    number, first = next(lines, (1, b"{}"))
    following = next(lines, None)
    try:
        found = json_of(first)
    except DocumentError as error:
        if following is None:
            raise TranscriptError(f"{file.path}, line {number}: {error}") from None
        found, following = _document(file, [(number, first), following]), None
    if following is None:
        yield from _objects_in(found, file.path)
        return
    yield from _of_line(found, file.path, number)
    for number, line in chain([following], lines):
        try:
            found = json_of(line)
        except DocumentError as error:
            raise TranscriptError(f"{file.path}, line {number}: {error}") from None
        yield from _of_line(found, file.path, number)


def _lines(file: GivenFile) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MAX_DOCUMENT_BYTES + 1):
        number += 1
        if len(line) > MAX_DOCUMENT_BYTES:
            raise TranscriptError(f"{file.path}, line {number}: {_TOO_LARGE}")
        if number > MAX_LINES:
            raise TranscriptError(f"{file.path}: has more than {MAX_LINES:,} lines; split it")
        if line.strip():
            yield number, line


def _document(file: GivenFile, begin: list[tuple[int, bytes]]) -> Any:
    """A document of several lines. `begin`: its first lines, which were read before, with their numbers."""
    data = b""
    for number, line in begin:
        data += b"\n" * (number - 1 - data.count(b"\n")) + line  # so that an error names the right line
    data += file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise TranscriptError(f"{file.path}: {_TOO_LARGE}")
    try:
        return json_of(data)
    except DocumentError as error:
        raise TranscriptError(f"{file.path}: {error}") from None


def _objects_in(whole: Any, path: Path) -> Iterator[Mapping[str, Any]]:
    if isinstance(whole, Mapping) and "parts" in whole and "requests" in whole:
        try:
            yield from _sample(whole)
        except (TypeError, LookupError) as error:
            raise TranscriptError(f"{path}: is not a sample of requests that share their parts ({error})") from None
        return
    for record in whole if isinstance(whole, list) else [whole]:
        if isinstance(record, Mapping):
            yield from _spans_or(record)


def _of_line(found: Any, path: Path, number: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(found, Mapping):
        raise TranscriptError(f"{path}, line {number}: an object was expected, not {type(found).__name__}")
    yield from _spans_or(found)


def _sample(whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The requests of a packaged sample of this project, which stores each shared part once."""
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
        return Recorded(_shown(span.session or path.stem), number, span.body, span.usage, span.time_s)
    body = next((record[name] for name in _BODIES if isinstance(record.get(name), Mapping)), record)
    if isinstance(body.get("body"), Mapping):  # a recorded HTTP request
        body = body["body"]
    if not any(name in body for name in _PROMPTS):
        return None
    given = record.get("n")
    times = (float(record[name]) for name in _TIMES if isinstance(record.get(name), (int, float)))
    time_s = next(filter(math.isfinite, times), None)
    session = record.get("session") if isinstance(record.get("session"), str) else None
    name = session or _session(record, body) or path.name.partition(".")[0]
    return Recorded(_shown(name), given if isinstance(given, int) else number, body, _usage(record), time_s)


def _spans_or(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The spans of an OTLP export; else the record itself."""
    return [span for _, span in spans_of(record)] or [record]


def _shown(session: str) -> str:
    return printable(session[:MAX_SESSION_CHARS])


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
    found = (pair for pair in pairs if isinstance(pair, (tuple, list)) and len(pair) == 2)
    return {str(name).lower(): str(text) for name, text in found}


def _usage(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for outer in (record, *(record.get(name) for name in _ANSWERS)):
        for inner in (outer, outer.get("body") if isinstance(outer, Mapping) else None):
            if isinstance(inner, Mapping) and (found := usage_in(inner)):
                return found
    return None
