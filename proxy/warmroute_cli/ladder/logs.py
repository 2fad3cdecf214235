"""Turns from the logs of other programs: which format a file is of, and one reader for each.

Limits: a line of more than `MAX_LINE_BYTES` is passed over, as `readers.lines` says.
"""

import gzip
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from warmroute.contract.money import Rates
from warmroute_cli.usd_rates import rates_of
from warmroute_proxy.ladder.of_reports import Reports
from warmroute_proxy.ladder.readers.lines import MAX_LINE_BYTES, Reader, json_object
from warmroute_proxy.ladder.readers.litellm import LiteLLM, is_litellm
from warmroute_proxy.ladder.readers.otel import Otel
from warmroute_proxy.ladder.readers.sglang import FINISHED, SGLang
from warmroute_proxy.ladder.readers.vllm import VLLM
from warmroute_proxy.ladder.turn import Turn

LOOKED_AT: Final = 2_000
"""Lines at the beginning of a file by which its format is told."""


class Source(NamedTuple):
    """Turns, and what they were read from. `notes`: what a reader of the figures must know; complete at the end."""

    about: dict[str, Any]
    turns: Iterator[Turn]
    notes: list[str]


def log_source(arguments: Namespace) -> Source:
    """The turns of logs. Raises: ValueError, OSError."""
    rates = _rates(arguments.price)
    formats = {path: arguments.format or format_of(path) for path in arguments.paths}
    if len(set(formats.values())) > 1:
        raise ValueError(f"the files are of different formats: {', '.join(sorted(set(formats.values())))}")
    name = next(iter(formats.values()))
    notes: list[str] = []
    reports = Reports(rates, arguments.kv_tokens)
    about = {"kind": name, "paths": [str(path) for path in formats], "kv_tokens": arguments.kv_tokens}
    return Source(about, _turns(list(formats), name, reports, notes, bool(rates)), notes)


def _turns(paths: list[Path], name: str, reports: Reports, notes: list[str], priced: bool) -> Iterator[Turn]:
    for path in paths:
        reader = _reader(name, path if len(paths) > 1 else None)
        for report in reader.reports(_lines(path)):
            yield reports.turn_of(report)
        if reader.skipped:
            notes.append(f"{path}: {reader.skipped} lines could not be read")
        if isinstance(reader, VLLM) and reader.hit_rate is not None:
            notes.append(f"{path}: vLLM states a hit rate of {reader.hit_rate:.1%} over its last requests")
    if name in {"sglang", "vllm"} and not priced:
        notes.append("this log has no prices: give --price")


def format_of(path: Path) -> str:
    """What a log is, by its first lines. Raises: ValueError, OSError."""
    for number, line in enumerate(_lines(path)):
        if number >= LOOKED_AT:
            break
        if FINISHED.encode() in line or b"Finish: obj=" in line:
            return "sglang"
        if b" details: prompt: " in line and b"prompt_token_ids: [" in line:
            return "vllm"
        row = json_object(line) if line[:1] == b"{" else None
        if row is not None and "resourceSpans" in row:
            return "otel"
        if row is not None and is_litellm(row):
            return "litellm"
    raise ValueError(f"{path} is no log that is known: name what it is by --format")


def _reader(name: str, worker: Path | None) -> Reader:
    named = "" if worker is None else worker.name
    readers: dict[str, Reader] = {
        "sglang": SGLang(named), "vllm": VLLM(named), "litellm": LiteLLM(), "otel": Otel()
    }  # fmt: skip
    if name not in readers:
        raise ValueError(f"--format {name} is no format of a log")
    return readers[name]


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, packed by gzip or not, each at most a little longer than what is read."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line


def _rates(given: list[str]) -> dict[str, Rates]:
    """Model -> rates; `""` for all others. Raises: ValueError."""
    found = {}
    for text in given:
        model, equals, rates = text.rpartition("=")
        found[model if equals else ""] = rates_of(rates)
    return found
