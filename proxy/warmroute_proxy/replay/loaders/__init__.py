"""Readers of trace files. The format is found by looking at the file, not by its name.

A reader makes a `Trace` and simulates nothing.

mooncake    chat requests in blocks of 512 tokens, open loop
sessions    agent sessions as lengths and shared prefixes, closed loop
prompts     recorded prompts of agent sessions
records     records of a live proxy's decisions
"""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from warmroute_proxy.replay.loaders import mooncake, sessions
from warmroute_proxy.replay.trace import MAX_REQUESTS, Trace, TraceError, concatenated

_RECORD = b"warmroute record "
MAX_BYTES = 1 << 30
"""Size of a trace, unpacked."""


def load_all(paths: Sequence[Path], seed: int = 1) -> Trace:
    """Return the traces in files as one: one after the other, but the records of a proxy's processes as one trace.

    Raises: as `load`.
    """
    groups: dict[object, list[Path]] = {}
    for at, path in enumerate(paths):
        of_process = path.suffix[1:].isdecimal() and _begins_as_record(path)
        key = (path.with_suffix(""), paths[:at].count(path)) if of_process else at
        groups.setdefault(key, []).append(path)
    return concatenated([load(path, salt, seed, more) for salt, (path, *more) in enumerate(groups.values())])


def load(path: Path, salt: int = 0, seed: int = 1, more: Sequence[Path] = ()) -> Trace:
    """Return the trace in a file, packed by gzip or not. `seed` draws the arrivals that the file leaves open.

    `more`: where it is a record, those of the other processes of its proxy.

    Raises: TraceError, which says what is wrong with the file; OSError, where there is none.
    """
    if _begins_as_record(path):
        if seed != 1:
            raise TraceError(f"{path}: a record has the arrivals that were: leave out --seed")
        from warmroute_proxy.replay.loaders import records  # only here: the codec takes 50 ms to set up

        return records.load((path, *more), salt)
    lines = _lines(path)
    try:
        first = msgspec.json.decode(lines[0])
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path}: line 1 is not JSON ({error})") from None
    if isinstance(first, dict) and "hash_ids" in first:
        return mooncake.load(path.name, lines, salt, seed)
    if isinstance(first, dict) and "turns" in first:
        return sessions.load(path.name, lines, salt, seed)
    raise TraceError(
        f"{path}: neither Mooncake's format (lines with timestamp, input_length, output_length, hash_ids) "
        "nor sessions (lines with block, tool_tokens, system_tokens, turns), nor a proxy's record"
    )


def _begins_as_record(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_RECORD)) == _RECORD


def _lines(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: is not whole ({error})") from None
    if len(content) > MAX_BYTES:
        raise TraceError(f"{path}: more than {MAX_BYTES} bytes")
    content = content.rstrip()
    if not content:
        raise TraceError(f"{path}: is empty")
    if content.count(b"\n") >= MAX_REQUESTS:
        raise TraceError(f"{path}: more than {MAX_REQUESTS} lines")
    return content.split(b"\n")
