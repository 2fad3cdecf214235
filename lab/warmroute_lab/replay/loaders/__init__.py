"""Readers of trace files. A file's content, not its name, decides its format.

A reader makes a `Trace` and simulates nothing.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from warmroute.files.given import GivenFile, given_bytes
from warmroute_lab.replay.loaders import mooncake, sessions, weka
from warmroute_lab.replay.trace import MAX_REQUESTS, Trace, TraceError, concatenated

_RECORD = b"warmroute record "
_WEKA = b'"hash_id_scope"'
_BEGIN_BYTES = 4096
"""The first bytes of a file, which show whether it is a weka trace."""
MAX_BYTES = 256 << 20
"""The largest size of a trace, unpacked."""

MAX_VALUES = 8_000_000
"""The largest number of values in all lines of a trace: 40 bytes each at the most."""


class _First(msgspec.Struct):
    """The fields of a first line that show the format; their values are not decoded."""

    hash_ids: msgspec.Raw = msgspec.Raw()
    turns: msgspec.Raw = msgspec.Raw()


def load_all(paths: Sequence[Path], seed: int = 1) -> Trace:
    """Return the traces in files as one trace, one after the other.

    The records of one proxy's processes count as one trace, and so do all weka files.

    Raises: as `load`.
    """
    groups: dict[object, list[Path]] = {}
    for at, path in enumerate(paths):
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        of_process = plain.suffix[1:].isdecimal() and begins_as_record(path)
        key: object = (plain.with_suffix(""), paths[:at].count(path)) if of_process else at
        if not of_process and _begins_as_weka(path):
            key = "weka"
        groups.setdefault(key, []).append(path)
    return concatenated([load(path, salt, seed, more) for salt, (path, *more) in enumerate(groups.values())])


def load(path: Path, salt: int = 0, seed: int = 1, more: Sequence[Path] = ()) -> Trace:
    """Return the trace in a file, compressed by gzip or not. `seed` draws the arrivals that the file does not state.

    `more`: further files of this trace. For a record, the records of the proxy's other processes; for a weka trace,
    other weka files.

    Raises: TraceError and UnreadableFile, which say what is wrong with the file.
    """
    if begins_as_record(path):
        if seed != 1:
            raise TraceError(f"{path}: a record has the arrivals that were: leave out --seed")
        from warmroute_lab.replay.loaders import records  # only here: the codec takes 50 ms to set up

        return records.load((path, *more), salt)
    if _begins_as_weka(path):
        return weka.load(path.name, _weka_sessions((path, *more)), salt, seed)
    lines = _lines(path)
    try:
        first = msgspec.json.decode(lines[0], type=_First)
    except msgspec.ValidationError:
        first = _First()
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path}: line 1 is not JSON ({error})") from None
    if first.hash_ids:
        return mooncake.load(path.name, lines, salt, seed)
    if first.turns:
        return sessions.load(path.name, lines, salt, seed)
    raise TraceError(
        f"{path}: neither Mooncake's format (lines with timestamp, input_length, output_length, hash_ids) "
        "nor sessions (lines with block, tool_tokens, system_tokens, turns), nor weka_trace (objects with block_size, "
        "hash_id_scope, requests), nor a proxy's record"
    )


def begins_as_record(path: Path) -> bool:
    """Whether a file is a proxy's record. Raises: UnreadableFile."""
    with GivenFile(path, MAX_BYTES) as file:
        return file.read(len(_RECORD)) == _RECORD


def _begins_as_weka(path: Path) -> bool:
    with GivenFile(path, MAX_BYTES) as file:
        return _WEKA in file.read(_BEGIN_BYTES)


def _weka_sessions(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Each session, with its place. A file has one session on several lines, or one session on each line."""
    values = 0
    for path in paths:
        lines = _lines(path)
        values += sum(line.count(b",") for line in lines)
        if values > MAX_VALUES:
            raise TraceError(f"{path}: more than {MAX_VALUES} values, with the files before it")
        if all(line.startswith(b"{") and _WEKA in line for line in lines):
            yield from ((f"{path}: line {number}", line) for number, line in enumerate(lines, 1))
        else:
            yield str(path), b"\n".join(lines)


def _lines(path: Path) -> list[bytes]:
    content = given_bytes(path, MAX_BYTES).rstrip()
    if not content:
        raise TraceError(f"{path}: is empty")
    if content.count(b"\n") >= MAX_REQUESTS:
        raise TraceError(f"{path}: more than {MAX_REQUESTS} lines")
    if content.count(b",") > MAX_VALUES:
        raise TraceError(f"{path}: more than {MAX_VALUES} values")
    return content.split(b"\n")
