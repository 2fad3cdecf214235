"""`python -m bench instructions`: counts the machine instructions of a workload by callgrind.

A whole proxy runs in one process without sockets (`in_process`). After a warm-up, callgrind counts what the thread of
the event loop executes for requests: the proxy, the interpreter and the libraries, but neither the kernel nor the
thread that writes the ledger. No body is sent twice. `--tree` names another checkout, whose `.venv` is used. `--limits`
gives the tenant a budget by the day, a limit by the minute, or both; or it gives the proxy's configuration a table
[tracing] that samples no request or all requests.
"""

import argparse
import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.bodies import Body, agents, as_messages, growing, renamed, small
from bench.dialects import RESPONSES, TRANSLATIONS, as_responses
from bench.engines import (
    ANSWER,
    ANSWER_TOKENS,
    BYTES_PER_TOKEN,
    FIRST,
    INFORMATION,
    LAST,
    MIDDLE,
    NOTHING_HERE,
    STREAM_HEAD,
    UNCACHED_TOKENS,
    Counting,
    Engine,
    stream_ending,
)
from bench.load import MESSAGES, offer, request
from bench.loop import Loop
from bench.proxies import BUDGET, MINUTE, ROOT, Fleet, Place, write_config

CHUNKS: Final = 200
AGENT_CHUNKS: Final = 40
LAST_ID: Final = f"resp_{'0' * 24}"
"""The placeholder for the id of the last response."""

_COMPLETED: Final = b'"type":"response.completed"'
ENDS: Final = {"http": b"0\r\n\r\n", "ws": _COMPLETED, "wsall": _COMPLETED}
TIMEOUT_S: Final = 600
_TRACING: Final = '\n[tracing]\nendpoint = "http://127.0.0.1:9"\nratio = %d\n'
LIMITS: Final = {
    "none": ("", ""),
    "budget": (BUDGET, ""),
    "minute": ("", MINUTE),
    "both": (BUDGET, MINUTE),
    "unsampled": (_TRACING % 0, ""),
    "sampled": (_TRACING % 1, ""),
}
"""Name of `--limits` -> additions to the proxy's configuration, and to its tenant's table."""

_PORT: Final = 0
_LOOP: Final = "-01"  # the first thread, in which the event loop runs
_SWITCH: Final = """
#include <valgrind/callgrind.h>
void start_counting(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop_counting(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""
_TOTAL: Final = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
_USER: Final = b'{"role": "user", "content": "'


class CannotCount(Exception):
    """The proxy failed, or a name is unknown. The message says what, in a line."""


class NotInstalled(CannotCount):
    """Callgrind or a compiler is missing."""


@dataclass(frozen=True)
class Counted:
    """A workload: each connection's requests, of the warm-up and those that count, and the reads of an answer."""

    name: str
    unit: str
    per_request: int
    warm: list[list[bytes]]
    counted: list[list[bytes]]
    reads: list[bytes]
    last: Counting  # the last read of an answer
    ends: bytes = b""  # bytes by which the last write of an answer is recognised; empty: as chats end

    @property
    def streams(self) -> bool:
        """Whether answers are streams."""
        return self.last is not ANSWER

    @property
    def units(self) -> int:
        """The number of requests or chunks that count."""
        return self.per_request * sum(map(len, self.counted))


def _sent(body: Body) -> bytes:
    return request(_PORT, body.data, body.session)


def _sent_as_messages(body: Body) -> bytes:
    found = as_messages(body)
    return request(_PORT, found.data, found.session, path=MESSAGES)


def _chats(
    connections: int, warm: int, counted: int, *, stream: bool, sent: Callable[[Body], bytes] = _sent
) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """Chats of 2 KB, each with another number before the user's text."""
    asked = []
    for connection in range(connections):
        body = small(connection, stream)
        numbered = [body.data.replace(_USER, b"%b%08d " % (_USER, number)) for number in range(warm + counted)]
        asked.append([sent(Body(body.session, data)) for data in numbered])
    return _split(asked, warm)


def _split(asked: list[list[bytes]], warm: int) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """Each connection's requests of the warm-up, and those that count."""
    return [each[:warm] for each in asked], [each[warm:] for each in asked]


def _turns(size: int, sessions: int, warm: int, counted: int) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """Agents' turns, a session for each connection, in which each turn continues the one before."""
    return _split([[_sent(body) for body in bodies] for bodies in agents(size, sessions, warm + counted)], warm)


def _numbered(count: int = CHUNKS) -> tuple[list[bytes], Counting]:
    """The chunks of a stream without the last, and the last chunk with the end of the stream."""
    chunks = [(FIRST if i == 0 else LAST if i == count - 1 else MIDDLE) % i for i in range(count)]
    chunks[0] = STREAM_HEAD + chunks[0]
    ending = stream_ending(count)
    return chunks[:-1], Counting(chunks[-1] + ending.template, ending.bare_bytes)


def _w1() -> Counted:
    return Counted("w1", "request", 1, *_chats(32, 6, 12, stream=False), [], ANSWER)


def _w2(name: str = "w2", sent: Callable[[Body], bytes] = _sent) -> Counted:
    return Counted(name, "chunk", CHUNKS, *_chats(16, 3, 3, stream=True, sent=sent), *_numbered())


def _w2burst() -> Counted:
    reads, last = _numbered()
    whole = Counting(b"".join([*reads, last.template]), last.bare_bytes)
    return Counted("w2burst", "chunk", CHUNKS, *_chats(16, 4, 12, stream=True), [], whole)


def _w3() -> Counted:
    return Counted("w3", "request", 1, *_turns(190_000, 4, 4, 12), [], ANSWER)


def _w3new() -> Counted:
    """Agents' turns of 190 KB, each in a session that the proxy has not seen before."""
    generations = itertools.count()
    asked = [
        [_sent(renamed(body, next(generations))) for body in bodies] for bodies in agents(190_000, sessions=4, turns=8)
    ]
    return Counted("w3new", "request", 1, *_split(asked, 2), [], ANSWER)


def _w3_1m() -> Counted:
    return Counted("w3-1m", "request", 1, *_turns(1_000_000, 4, 3, 6), [], ANSWER)


def _w5(name: str = "w5", sent: Callable[[Body], bytes] = _sent) -> Counted:
    asked = [[sent(body) for body in bodies] for bodies in growing(0, stream=False, sessions=4)]
    return Counted(name, "request", 1, *_split(asked, 2), [], ANSWER)


def _sent_by(letter: str) -> Callable[[Body], bytes]:
    def sent(body: Body) -> bytes:
        path, found = TRANSLATIONS[letter](body)
        return request(_PORT, found.data, found.session, path=path)

    return sent


def _w4_by(transport: str) -> Counted:
    """Agents' streamed turns of 150 KB, each 2 KB longer than the one before, to `/v1/responses`. With `ws`, a
    WebSocket carries only new items; with `wsall`, all items, as OpenCode sends them.
    """
    asked = []
    for bodies in agents(150_000, sessions=4, turns=16):
        session = bodies[0].session
        events = [{**json.loads(as_responses(body)[1].data), "stream": True} for body in bodies]
        if transport == "http":
            asked.append([request(_PORT, json.dumps(each).encode(), session, path=RESPONSES) for each in events])
            continue
        sent = [_message(events[0])]
        for before, each in itertools.pairwise(events):
            added = each["input"][len(before["input"]) :]
            more = {} if transport == "wsall" else {"input": added, "previous_response_id": LAST_ID}
            sent.append(_message({**each, **more}))
        asked.append([offer(_PORT, session, RESPONSES), *sent])
    turns = _split(asked, 4 if transport == "http" else 5)
    return Counted(f"w4{transport}", "request", 1, *turns, *_numbered(AGENT_CHUNKS), ends=ENDS[transport])


def _message(event: dict[str, Any]) -> bytes:
    """A WebSocket frame with a mask of zeros, so that the id of the last response can be written into it."""
    data = json.dumps({"type": "response.create", **event}).encode()
    return b"\x81\xff" + len(data).to_bytes(8, "big") + bytes(4) + data


WORKLOADS: Final[dict[str, Callable[[], Counted]]] = {
    "w1": _w1,
    "w2": _w2,
    "w2burst": _w2burst,
    "w3": _w3,
    "w3-1m": _w3_1m,
    "w3new": _w3new,
    "w4http": partial(_w4_by, "http"),
    "w4ws": partial(_w4_by, "ws"),
    "w4wsall": partial(_w4_by, "wsall"),
    "w2m": partial(_w2, "w2m", _sent_as_messages),
    "w5": _w5,
    "w5m": partial(_w5, "w5m", _sent_as_messages),
    **{f"w5{letter}": partial(_w5, f"w5{letter}", _sent_by(letter)) for letter in TRANSLATIONS},
    **{f"w2{letter}": partial(_w2, f"w2{letter}", _sent_by(letter)) for letter in TRANSLATIONS},
}
DEFAULT: Final = "w1,w2,w2burst,w3"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _plan(workload: Counted) -> str:
    return json.dumps(
        {
            "warm": [[_text(each) for each in requests] for requests in workload.warm],
            "counted": [[_text(each) for each in requests] for requests in workload.counted],
            "reads": [_text(read) for read in workload.reads],
            "last": _text(workload.last.template),
            "bare_bytes": workload.last.bare_bytes,
            "information": {path.decode(): _text(reply) for path, reply in INFORMATION.items()},
            "nothing_here": _text(NOTHING_HERE),
            "answer_tokens": CHUNKS if workload.streams else ANSWER_TOKENS,
            "bytes_per_token": BYTES_PER_TOKEN,
            "uncached_tokens": UNCACHED_TOKENS,
            "answer_ends": _text(workload.ends or (b"0\r\n\r\n" if workload.streams else b"}")),
            "last_id": LAST_ID,
        }
    )


def prepare(folder: Path, workload: Counted, limits: str = "none") -> None:
    """Write the files that `in_process` reads: the configuration, the plan, and `switch.so`."""
    loop = Loop()
    engines = [Engine(loop) for _ in range(4)]  # only for their addresses: they get no requests
    fleet = Fleet((engines[0], engines[1]), engines[2], engines[3])
    write_config(Place(0, 0, folder, None), fleet, False, *LIMITS[limits])
    loop.close()
    (folder / "plan.json").write_text(_plan(workload))
    (folder / "switch.c").write_text(_SWITCH)
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(folder / "switch.so"), str(folder / "switch.c")]
    done = subprocess.run(compiler, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(f"cannot compile callgrind's switch: {done.stderr.strip().splitlines()[0]}")


def count(tree: Path, workloads: Sequence[Counted], limits: str = "none") -> list[float]:
    """The instructions that a tree's code needs for each request or chunk of each workload."""
    for program in ("valgrind", "cc"):
        if shutil.which(program) is None:
            raise NotInstalled(f"{program} is not installed")
    python = tree / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="warmroute-instructions-") as name:
        folders = [Path(name, workload.name) for workload in workloads]
        for folder, workload in zip(folders, workloads, strict=True):
            folder.mkdir()
            prepare(folder, workload, limits)
        out = Path(name, "callgrind.out")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
        command += [f"--callgrind-out-file={out}.%p"]
        command += [str(python) if python.exists() else sys.executable]
        command += [str(Path(__file__).with_name("in_process.py")), *map(str, folders)]
        paths = ":".join(str(tree / part) for part in ("sdk", "proxy", "backend", "lab"))
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": paths}
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, env=environment, cwd=name, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise CannotCount(f"the workloads did not end in {TIMEOUT_S} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("==")]
            raise CannotCount("; ".join(line[:400] for line in lines[-2:]) or f"status {done.returncode}")
        files = [Path(f"{out}.{(folder / 'pid').read_text()}{_LOOP}") for folder in folders]
        totals = [max(map(int, _TOTAL.findall(file.read_text()))) for file in files]
    return [total / workload.units for total, workload in zip(totals, workloads, strict=True)]


def main(argv: list[str]) -> int:
    """Count and print. Returns 2 if counting is not possible."""
    parser = argparse.ArgumentParser(prog="python -m bench instructions", description=__doc__)
    parser.add_argument("--tree", type=Path, action="append", metavar="DIR", help="a checkout; may stand several times")
    parser.add_argument("--workloads", default=DEFAULT, help=f"of {','.join(WORKLOADS)} (%(default)s)")
    parser.add_argument("--limits", choices=LIMITS, default="none", help="what the config has more (%(default)s)")
    asked = parser.parse_args(argv)
    names = asked.workloads.split(",")
    try:
        unknown = [name for name in names if name not in WORKLOADS]
        if unknown:
            raise CannotCount(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
        trees = [tree.resolve() for tree in asked.tree or [ROOT]]
        print(f"{'instructions':<16}" + "".join(f"{tree.name:>14}" for tree in trees), flush=True)
        for name in names:
            workload = WORKLOADS[name]()
            figures = [count(tree, [workload], asked.limits)[0] for tree in trees]
            row = "".join(f"{figure:>14,.0f}" for figure in figures)
            ratios = "".join(f"  x {figure / figures[0]:.3f}" for figure in figures[1:])
            print(f"{name + ' a ' + workload.unit:<16}{row}{ratios}", flush=True)
    except CannotCount as error:
        print(f"python -m bench instructions: {error}", file=sys.stderr)
        return 2
    return 0
