"""Odd files of others, and a process that gives them to a command: `python -m tests.hostile.given_files < cases`.

A case is the words of a command line. The process writes a line of JSON for each: exit code, output, and by how much
the memory grew at its peak. It has a limit of address space, so that a command without a bound ends soon.
"""

import contextlib
import gzip
import io
import json
import os
import resource
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ADDRESS_SPACE_BYTES: Final = 4 << 30
CUT_BYTES: Final = 20
PIECE: Final = 16 << 20
BOMB: Final = 512 << 20

ODD: Final[tuple[str, ...]] = (
    "null", "true", "-1", "1e999", "NaN", "9" * 4_000, '""', '"\\ud800"', '"\\u001b]0;owned\\u0007"', '"\\u0000"', "[]",
    "[null]", '["a", "b"]', "{}", '{"a": {"a": [1]}}', "[" * 200 + "]" * 200,
)  # fmt: skip
"""Values of JSON where others were expected."""


def bomb(piece: bytes, size: int = BOMB) -> bytes:
    """A gzip of a few kilobytes that unpacks to `size` bytes."""
    return gzip.compress(piece * (PIECE // len(piece)), 9) * (size // PIECE)


def special(folder: Path) -> Iterator[Path]:
    """What is no regular file, itself or behind a link."""
    os.mkfifo(folder / "fifo.json")
    (folder / "folder.json").mkdir()
    (folder / "loop.json").symlink_to("loop.json")
    yield folder / "none.json"
    yield folder / "fifo.json"
    yield folder / "loop.json"
    for name, target in (("zero", "/dev/zero"), ("full", "/dev/full"), ("piped", folder / "fifo.json")):
        (folder / f"{name}.json").symlink_to(target)
        yield folder / f"{name}.json"


def packed(folder: Path, whole: bytes) -> Iterator[Path]:
    """Gzips that are cut off, damaged, or far larger than they look."""
    good = gzip.compress(whole + os.urandom(100).hex().encode())
    contents = {
        "cut": good[:-CUT_BYTES],
        "begun": good[:5],
        "damaged": good[:10] + b"\xff" * 100 + good[110:],
        "noise": b"\x1f\x8b" + os.urandom(200),
        "spaces": bomb(b" "),
        "zeros": bomb(b"\0"),
        "lists": bomb(b"[],"),
        "open lists": bomb(b"["),
        "texts": bomb(b'"",'),
        "objects": b"".join((gzip.compress(b"["), bomb(b"{},"), gzip.compress(b"{}]"))),
        "one text": b"".join((gzip.compress(whole.rstrip()[:-1] + b', "x": "'), bomb(b"x"), gzip.compress(b'"}\n'))),
    }
    for name, content in contents.items():
        path = folder / f"{name}.json.gz"
        path.write_bytes(content)
        yield path


def broken(folder: Path, whole: bytes) -> Iterator[Path]:
    """What is no document, or one of another kind."""
    contents = {
        "empty": b"",
        "no text": b"\xff" + os.urandom(64),
        "cut": whole.rstrip()[:-5],
        "deep": b"[" * 200_000 + b"]" * 200_000,
        "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "number": b"9" * 100_000,
        "list": b"[1, 2]",
        "then": whole.rstrip() + b"\n[1]\n",
        "lists": b"[" + b"[]," * 20_000_000 + b"[]]",
    }
    for name, content in contents.items():
        path = folder / f"{name}.json"
        path.write_bytes(content)
        yield path


def changed(folder: Path, values: Mapping[str, Any]) -> Iterator[Path]:
    """Documents of one line, each with one odd value in the place of another."""
    for name, value in values.items():
        for number, place in enumerate(_places(value)):
            for kind, odd in enumerate(ODD):
                path = folder / f"{name}-{number}-{kind}.json"
                path.write_text(json.dumps(_with(value, place)).replace('"ODD"', odd) + "\n")
                yield path


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Where values are in a value."""
    yield ()
    keyed = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in keyed:
        yield from ((key, *place) for place in _places(inner))


def _with(value: Any, place: tuple[Any, ...]) -> Any:
    if not place:
        return "ODD"
    key, *rest = place
    if isinstance(value, dict):
        return {name: _with(inner, tuple(rest)) if name == key else inner for name, inner in value.items()}
    return [_with(inner, tuple(rest)) if at == key else inner for at, inner in enumerate(value)]


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10


def _outcome(words: list[str]) -> dict[str, Any]:
    from warmroute_cli.main import main

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak_bytes()
    shown, said = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        try:
            code: object = main(words)
        except SystemExit as error:
            code = error.code
        except BaseException:
            code = traceback.format_exc()
    texts = [each.buffer.getvalue().decode() for each in (shown, said)]
    return {"words": words, "code": code, "shown": texts[0], "said": texts[-1], "grew": _peak_bytes() - before}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    for case in json.load(sys.stdin):
        print(json.dumps(_outcome(case)), flush=True)
