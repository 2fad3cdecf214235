"""Measures a session of Codex over HTTP and over a WebSocket: bytes, CPU time of the proxy, time to first token.

    python -m bench.websocket
    python -m bench.websocket --forwarded
    python -m bench.websocket --engine http://127.0.0.1:30000 --context-kb 0 --rounds 1

The session begins with the first request of a recorded session of Codex, with its tools and instructions. Then come 40
turns, each with 2 KB of a tool's output. The engine is an embedded (simulated) one, or a running `--engine`. The
session is run once with the recorded beginning, and once with a beginning of 150 KB. With `--forwarded`, another region
serves all turns. The SGLang of `scripts/sglang` can serve the session with
`SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1` and the flags `--context-length 131072 --max-total-tokens 262144`.

Over HTTP, each turn is a POST with the whole conversation. Over a WebSocket, a turn sends only new items, or all items
(as OpenCode does). Bytes are counted over all requests. CPU time is that of the proxy that the client reaches, for each
turn, minus what the proxy uses when idle. The least of the rounds counts, since other programs only add time. Times to
first token are medians. On a busy machine, use `python -m bench instructions --workloads w4http,w4ws` instead.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from tests.recordings import recorded
from tests.subjects.processes import EngineProcess, ProxyProcess
from websockets.sync.client import ClientConnection, connect

from warmroute.contract import headers as names
from warmroute_cli.processes import stop_all

MODEL: Final = "kimi-k2.5"
REGIONS: Final = ("east", "west")
TURNS: Final = 40
IDLE_S: Final = 10.0
ROUNDS: Final = 5
OUTPUT_BYTES: Final = 2_000
OUTPUT_TOKENS: Final = 16
"""The length of an answer of an `--engine`, which does not follow the embedded engine's script."""
CONTEXT_BYTES: Final = 150_000
_PATH: Final = "/v1/responses"
_LAST: Final = ("response.completed", "response.failed", "response.incomplete", "error")

Ask = Callable[[dict[str, Any], list[Any], list[Any], str | None], Iterator[dict[str, Any]]]
"""A function that sends a turn. Arguments: the fields that each request has, all items, the new items, and the id of
the last response."""


@dataclass
class Measured:
    """The figures of one session."""

    sent_bytes: int = 0
    cpu_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)


def cpu_s(pid: int) -> float:
    """The CPU time of a process, which the kernel counts in nanoseconds."""
    found = [int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(found) / 1e9


def first_request(context_bytes: int) -> tuple[dict[str, Any], list[Any]]:
    """The fields that each request of the session has, and the input of the first request."""
    body = dict(recorded("codex")[0].body)
    body.pop("stream")
    items = body.pop("input")
    body |= {
        "model": MODEL,
        "max_output_tokens": OUTPUT_TOKENS,
        "metadata": {"script": json.dumps([{"text": "I have looked at it."}])},
        "instructions": f"Session {uuid.uuid4()}.",  # new, so that no cache has it
    }
    while len(json.dumps(items)) < context_bytes:
        number = len(items)
        items += call(number)
    return body, items


def call(number: int) -> list[Any]:
    """The items of a tool call and its result."""
    arguments = json.dumps({"cmd": f"sed -n {number}p file"})
    text = "".join(f"{number}:{line}: a line of a file that was read\n" for line in range(OUTPUT_BYTES // 40))
    return [
        {"type": "function_call", "call_id": f"call_{number}", "name": "exec_command", "arguments": arguments},
        {"type": "function_call_output", "call_id": f"call_{number}", "output": text[:OUTPUT_BYTES]},
    ]


def idle_share(pid: int) -> float:
    """CPU seconds that an idle proxy uses in a second, for example to probe its engines."""
    before_s = cpu_s(pid)
    time.sleep(IDLE_S)
    return (cpu_s(pid) - before_s) / IDLE_S


def session(context_bytes: int, ask: Ask, pid: int, idle: float) -> Measured:
    """Run a session of a first turn and `TURNS` further turns."""
    found = Measured()
    body, items = first_request(context_bytes)
    previous: str | None = None
    added = items
    for turn in range(TURNS + 1):
        if turn == 1:
            found.sent_bytes = 0
        before_s = cpu_s(pid)
        began_s, first_s = time.perf_counter(), 0.0
        for event in ask(body, items, added, previous):
            if "sent_bytes" in event:
                found.sent_bytes += event["sent_bytes"]
            elif event["type"].endswith(".delta") and not first_s:
                first_s = time.perf_counter() - began_s
            elif event["type"] in _LAST:
                assert event["type"] in ("response.completed", "response.incomplete"), event
                previous = event["response"]["id"]
                output = event["response"]["output"]
        if turn:
            found.ttft_s.append(first_s)
            found.cpu_s.append(cpu_s(pid) - before_s - idle * (time.perf_counter() - began_s))
        added = [{"role": "user", "content": call(10_000 + turn)[1]["output"]}]
        items = [*items, *output, *added]
    return found


def over_http(client: httpx.Client) -> Ask:
    """A function that sends each turn as a POST with all items."""

    def ask(body: dict[str, Any], items: list[Any], _: list[Any], __: str | None) -> Iterator[dict[str, Any]]:
        content = json.dumps({**body, "input": items, "stream": True}, ensure_ascii=False, separators=(",", ":"))
        yield {"sent_bytes": len(content)}
        with client.stream("POST", _PATH, content=content) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    return ask


def over_websocket(connection: ClientConnection, *, whole: bool) -> Ask:
    """A function that sends each turn as a message with the new items, or, if `whole`, with all items."""

    def ask(body: dict[str, Any], items: list[Any], added: list[Any], previous: str | None) -> Iterator[dict[str, Any]]:
        event = {"type": "response.create", **body, "input": items if whole else added}
        if not whole:
            event["previous_response_id"] = previous
        content = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        yield {"sent_bytes": len(content)}
        connection.send(content)
        for message in connection:
            found = json.loads(message)
            yield found
            if found["type"] in _LAST:
                break

    return ask


def least_ms(sessions: list[Measured]) -> float:
    """CPU time of a turn: the least over the rounds for each turn, then the mean over the turns."""
    least_s: list[float] = [min(turn) for turn in zip(*[each.cpu_s for each in sessions], strict=True)]
    return sum(least_s) / TURNS * 1000


def table(proxy: ProxyProcess, headers: dict[str, str], contexts_bytes: list[int], rounds: int) -> Iterator[str]:
    """The lines of the table."""
    assert proxy.child is not None
    pid, key = proxy.child.pid, {"authorization": f"Bearer {proxy.keys[0]}", **headers}
    idle = idle_share(pid)
    yield "| context | transport | MB sent | CPU, ms a turn | of HTTP's | first token, ms |"
    yield "|---|---|---|---|---|---|"
    for context_bytes in contexts_bytes:
        sessions: dict[str, list[Measured]] = {"HTTP": [], "WebSocket, what is new": [], "WebSocket, all": []}
        for _ in range(rounds):
            with httpx.Client(base_url=proxy.url, headers=key, timeout=60) as client:
                sessions["HTTP"].append(session(context_bytes, over_http(client), pid, idle))
            for name, whole in (("WebSocket, what is new", False), ("WebSocket, all", True)):
                with connect(f"ws{proxy.url[4:]}{_PATH}", additional_headers=key, max_size=None) as connection:
                    asked = over_websocket(connection, whole=whole)
                    sessions[name].append(session(context_bytes, asked, pid, idle))
        used_ms = {name: least_ms(found) for name, found in sessions.items()}
        shown = f"{len(json.dumps(first_request(context_bytes))) // 1000} KB"
        for name, found in sessions.items():
            ttft_ms = statistics.median([ttft_s for each in found for ttft_s in each.ttft_s]) * 1000
            of_http = used_ms[name] / used_ms["HTTP"]
            sent_mb = found[0].sent_bytes / 1e6
            yield f"| {shown} | {name} | {sent_mb:.2f} | {used_ms[name]:.2f} | {of_http:.2f} | {ttft_ms:.1f} |"


def main() -> None:
    """Print the table."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--engine", help="the url of an engine that runs; an embedded one otherwise")
    found.add_argument("--forwarded", action="store_true", help="by a proxy to another region")
    found.add_argument("--context-kb", type=int, nargs="+", default=[0, CONTEXT_BYTES // 1000], help="(%(default)s)")
    found.add_argument("--rounds", type=int, default=ROUNDS, help="(%(default)s)")
    given = found.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, url = Path(name), given.engine
        if url is None:
            engine = EngineProcess(folder, "a0", "aggregated", speed=200.0)
            stack.callback(stop_all, [engine.child], 5.0)
            url = engine.listening().url
        tables = [
            f'[[engine]]\nid = "a0"\nurl = "{url}"\nregion = "{region}"\nrole = "aggregated"' for region in REGIONS
        ]
        keys, peer, headers = None, None, {}
        if given.forwarded:
            west = ProxyProcess(folder / "p", [tables[1]], region=REGIONS[1], fresh=True)
            stack.callback(west.stop)
            keys, peer, headers = west.keys, (REGIONS[1], west.start().url), {names.HOME: REGIONS[1]}
        proxy = ProxyProcess(folder / "p", [tables[0]], keys=keys, peer=peer, fresh=True)
        stack.callback(proxy.stop)
        contexts_bytes = [1000 * each for each in given.context_kb]
        for line in table(proxy.start(), headers, contexts_bytes, given.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
