"""`python -m bench.wrappers`: measures what client libraries cost beyond openai's client. `--page` writes the page.

Each library runs in a separate process; other projects' libraries have environments below a cache folder. All libraries
call one server, which answers at once, and take turns in rounds. A figure is the CPU time of the client's process for a
call, minus that of a call of openai's client: the median of the calls after the first of a conversation. The call of
openai's client is made in the same process. Langfuse changes openai's client, so for Langfuse it is made in another
process of the same environment.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Final

from tests.subjects.http_server import QuietServer

from bench import peers
from bench.page import put
from bench.proxies import ROOT

PAGE: Final = ROOT / "docs" / "benchmarks" / "guard.md"
BEGIN, END = "<!-- figures: python -m bench.wrappers --page -->", "<!-- end of figures -->"
CALLS: Final = Path(__file__).with_name("wrapped_calls.py")
SIZES: Final = ((10_000, 10), (100_000, 50), (1_000_000, 200))
"""Bytes of a conversation with its tools, and the number of its messages."""

OF_OURS: Final = ("warmroute, guard off", "warmroute, guard on")
OTHERS: Final = {"langfuse": "langfuse", "litellm": "litellm"}
"""Kind of call -> the package that is installed for it."""

_ANSWER: Final = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 20000,
            "completion_tokens": 1,
            "total_tokens": 20001,
            "prompt_tokens_details": {"cached_tokens": 19000},
        },
    }
).encode()


class Answers(BaseHTTPRequestHandler):
    """Answers every request at once."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(_ANSWER)))
        self.end_headers()
        self.wfile.write(_ANSWER)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def measured_us(python: Path, kind: str, url: str, size: int, messages: int, turns: int) -> float:
    """The median of the times that `wrapped_calls` prints. Raises: RuntimeError with the last line of its output."""
    command = [str(python), str(CALLS), kind, url, str(size), str(messages), str(turns)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "sdk"), "HOME": str(Path.home())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{kind}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return float(median(json.loads(done.stdout.splitlines()[-1])))


def beyond_openai(url: str, rounds: int, turns: int) -> dict[str, dict[int, float]]:
    """Kind -> size -> microseconds of a call beyond openai's client, the median over the rounds."""
    pythons = dict.fromkeys(OF_OURS, Path(sys.executable))
    for kind, package in OTHERS.items():
        peers.install(package)
        pythons[kind] = peers.find(package).environment / "bin" / "python"
    found: dict[str, dict[int, list[float]]] = {kind: {size: [] for size, _ in SIZES} for kind in pythons}
    for _ in range(rounds):
        for size, messages in SIZES:
            for kind, python in pythons.items():
                plain = measured_us(python, "openai", url, size, messages, turns) if kind == "langfuse" else 0.0
                found[kind][size].append(measured_us(python, kind, url, size, messages, turns) - plain)
    return {kind: {size: median(values) for size, values in row.items()} for kind, row in found.items()}


def table(found: dict[str, dict[int, float]]) -> str:
    """The figures as Markdown."""
    heads = " | ".join(f"{size // 1000:,} KB" for size, _ in SIZES)
    versions = {kind: f" {peers.version_of(package)}" for kind, package in OTHERS.items()}
    rows = [
        f"| {kind}{versions.get(kind, '')} | {' | '.join(f'{row[size]:,.0f}' for size, _ in SIZES)} |"
        for kind, row in found.items()
    ]
    return "\n".join([f"| us of CPU a call | {heads} |", "|---|" + "---:|" * len(SIZES), *rows])


def main(argv: Sequence[str]) -> int:
    """Measure and print, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.wrappers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)d)")
    parser.add_argument("--turns", type=int, default=20, help="calls that count, in each conversation (%(default)d)")
    parser.add_argument("--page", action="store_true", help=f"write the figures into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args(argv)
    server = QuietServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        found = beyond_openai(f"http://127.0.0.1:{server.server_port}/v1", arguments.rounds, arguments.turns)
    except (RuntimeError, peers.PeerError) as error:
        print(f"python -m bench.wrappers: {error}", file=sys.stderr)
        return 2
    text = table(found)
    print(text)
    if arguments.page:
        PAGE.write_text(put(PAGE.read_text(), BEGIN, [text], END))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
