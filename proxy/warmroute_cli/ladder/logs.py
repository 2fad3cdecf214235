"""Reads turns from the logs of other programs: detects the format of a file, and chooses its reader.

Several files are the logs of several workers. Their lines are merged by time. A line of more than `MAX_LINE_BYTES` is
skipped (`readers.lines`).
"""

from argparse import Namespace
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from warmroute.contract.money import Rates, usd
from warmroute.files.given import GivenFile
from warmroute.files.printable import number_of
from warmroute_cli.arguments import rates_of
from warmroute_proxy.ladder.of_reports import Reports
from warmroute_proxy.ladder.prefixes import MAX_WORKERS
from warmroute_proxy.ladder.readers.lines import MAX_LINE_BYTES, Reader, json_object
from warmroute_proxy.ladder.readers.litellm import LiteLLM, is_litellm
from warmroute_proxy.ladder.readers.otel import Otel
from warmroute_proxy.ladder.readers.sglang import SGLang, is_finished
from warmroute_proxy.ladder.readers.vllm import VLLM, is_request
from warmroute_proxy.ladder.turn import LadderTurn

TRACE: Final = "trace"
MAX_FILE_BYTES: Final = 1 << 40
"""The largest log after unpacking. It may be large, since a log is read line by line and is not kept in memory."""

MAX_NAMED: Final = 5
"""The maximum number of models that a note names."""

WEKA: Final = b'"hash_id_scope"'
WEKA_BYTES: Final = 4096
"""The first bytes of a weka trace, which have `WEKA`. A file may have its only session on several lines."""

LOOKED_AT: Final = 2_000
"""Lines at the beginning of a file in which its format is looked for."""


class LogTurns(NamedTuple):
    """Turns and their source. `notes`: caveats about the figures, complete once all turns are read."""

    about: dict[str, Any]
    turns: Iterator[LadderTurn]
    notes: list[str]


def log_source(arguments: Namespace) -> LogTurns:
    """The turns of logs. Raises: ValueError, OSError."""
    rates = rates_by_model(arguments.price)
    if arguments.by == "kind":
        raise ValueError("--by kind is for ledgers: logs do not say it")
    name = format_of_all(arguments)
    paths = list({path.resolve(): path for path in arguments.paths}.values())
    notes: list[str] = []
    reports = Reports(rates, arguments.kv_tokens)
    about = {"kind": name, "paths": [str(path) for path in paths], "kv_tokens": arguments.kv_tokens}
    return LogTurns(about, _turns(paths, name, reports, notes), notes)


def format_of_all(arguments: Namespace) -> str:
    """The format that all files have. Raises: ValueError, OSError."""
    formats = {arguments.format or format_of(path) for path in arguments.paths}
    if len(formats) > 1:
        raise ValueError(f"the files are of different formats: {', '.join(sorted(formats))}")
    return str(formats.pop())


def _turns(paths: list[Path], name: str, reports: Reports, notes: list[str]) -> Iterator[LadderTurn]:
    readers = [_reader(name, path if len(paths) > 1 else None) for path in paths]
    logs = [reader.reports(_lines(path)) for reader, path in zip(readers, paths, strict=True)]
    for report in merge(*logs, key=attrgetter("at")):
        yield reports.turn_of(report)
    for reader, path in zip(readers, paths, strict=True):
        if reader.skipped:
            notes.append(f"{path}: {reader.skipped} lines could not be read")
        if isinstance(reader, Otel) and reader.merged:
            notes.append(f"{path}: {reader.merged} spans show requests that other spans show, too: they were merged")
        if isinstance(reader, LiteLLM) and reader.failed:
            cost = usd(reader.failed_nanousd)
            notes.append(f"{path}: {reader.failed} requests failed; their {cost} USD are not in the ladder")
        if isinstance(reader, VLLM) and reader.hit_rate is not None:
            notes.append(f"{path}: vLLM states a hit rate of {reader.hit_rate:.1%} over its last requests")
    if reports.forgot_pages:
        notes.append(f"{reports.forgot_pages:,} pages of prompts were dropped, the oldest: `reachable` may be too low")
    if reports.has_many_workers:
        notes.append(f"more than {MAX_WORKERS:,} workers: the others count as one")
    notes += unrated(reports)


def unrated(reports: Reports) -> list[str]:
    if not reports.unrated:
        return []
    named = ", ".join(model or "(no name)" for model, _ in reports.unrated.most_common(MAX_NAMED))
    more = f" and {len(reports.unrated) - MAX_NAMED} more" if len(reports.unrated) > MAX_NAMED else ""
    number = reports.unrated.total()
    turns = f"{number_of(number, 'turn')} {'has' if number == 1 else 'have'} no rates ({named}{more})"
    return [f"{turns}: --price [MODEL=]INPUT:CACHED:OUTPUT gives the USD of their steps"]


def format_of(path: Path) -> str:
    """The format of a log, by its first lines. Raises: ValueError, OSError."""
    with GivenFile(path, MAX_FILE_BYTES) as file:
        begin = file.read(WEKA_BYTES)
        if begin.startswith(b"{") and WEKA in begin:
            return TRACE
    for number, line in enumerate(_lines(path)):
        if number >= LOOKED_AT:
            break
        if number == 0 and _is_trace(line):
            return TRACE
        if is_finished(line):
            return "sglang"
        if is_request(line):
            return "vllm"
        row = json_object(line) if line[:1] == b"{" else None
        if row is not None and "resourceSpans" in row:
            return "otel"
        if row is not None and is_litellm(row):
            return "litellm"
    raise ValueError(f"{path} has no known log format: name the format with --format")


def _is_trace(line: bytes) -> bool:
    """Whether this first line begins a proxy's record of its decisions, or another trace that a replay reads."""
    row = json_object(line) if line[:1] == b"{" else None
    return line.startswith(b"warmroute record ") or (row is not None and ("hash_ids" in row or "turns" in row))


def _reader(name: str, worker: Path | None) -> Reader:
    named = "" if worker is None else str(worker)
    readers: dict[str, Reader] = {
        "sglang": SGLang(named), "vllm": VLLM(named), "litellm": LiteLLM(), "otel": Otel()
    }  # fmt: skip
    if name not in readers:
        raise ValueError(f"--format {name} is not a format of a log")
    return readers[name]


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a plain or gzip file. A line of more than `MAX_LINE_BYTES` is cut to one byte more."""
    with GivenFile(path, MAX_FILE_BYTES) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line
            rest = line
            while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES + 1)


def rates_by_model(given: list[str]) -> dict[str, Rates]:
    """Model -> rates; `""` stands for all other models. Raises: ValueError."""
    found = {}
    for text in given:
        model, equals, rates = text.rpartition("=")
        found[model if equals else ""] = rates_of(rates)
    return found
