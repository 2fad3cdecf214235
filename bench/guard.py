"""Measures the cost of the SDK's prefix guard: CPU time of a call by size, memory, and the time of the import.

    python -m bench.guard

Times are CPU times of the thread, since a busy machine lengthens wall time. A figure is the least over the turns after
the first, since other programs only add time. Each turn has two new messages. *guard*: the time that the guard adds to
a call. *whole*: all that the SDK does for a call (session, headers, usage, sums), without openai's client around it.
*shared*: a prompt shares its strings with the turn before, as in a program that appends to a list. *parsed*: all
strings are new objects, as below a transport.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from warmroute._books import Books
from warmroute._guard import Guard
from warmroute._observer import Observer
from warmroute._turns import Turn

_FRAMES: Final = 30  # recorded frames of a call stack, more than the SDK needs
TURNS: Final = 30
ROUNDS: Final = 5
SIZES: Final = ((100_000, 50), (1_000_000, 200))
"""Bytes of a conversation, and the number of its messages."""

TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": "does it " * 100,
            "parameters": {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(6)}},
        },
    }
    for number in range(10)
]


USAGE: Final = {"prompt_tokens": 25_000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 24_900}}


@dataclass
class Options:
    """A call as openai's client describes it."""

    json_data: dict[str, Any]
    method: str = "post"
    url: str = "/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_json: None = None
    idempotency_key: None = None


@dataclass
class Client:
    """The members of a client that the SDK reads."""

    headers: Mapping[str, str] = field(default_factory=lambda: {"user-agent": "x", "accept": "application/json"})
    base_url: str = "http://127.0.0.1:8000/v1"
    _custom_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def _client(self) -> "Client":
        return self


@dataclass
class Answer:
    """The members of an answer's head that the SDK reads."""

    headers: Mapping[str, str] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
    is_closed: bool = True
    """Whether the body was read already, so that nothing is read along."""


def conversation(size: int, messages: int) -> list[dict[str, Any]]:
    """Messages that, with the tools, have about `size` bytes."""
    text = "word " * ((size - len(json.dumps(TOOLS))) // messages // 5)
    roles = ("user", "assistant")
    found = [{"role": roles[at % 2], "content": f"{at} {text}"} for at in range(messages)]
    return [{"role": "system", "content": "You are brief."}, *found]


def bodies(size: int, messages: int, *, parsed: bool) -> Iterator[dict[str, Any]]:
    """The requests of a conversation that grows by two messages a turn."""
    sent = conversation(size, messages)
    for turn_number in range(TURNS + 1):
        sent = [
            *sent,
            {"role": "assistant", "content": "ok " * 50},
            {"role": "user", "content": f"go on {turn_number}"},
        ]
        body: dict[str, Any] = {"model": "m", "tools": TOOLS, "messages": [dict(message) for message in sent]}
        yield json.loads(json.dumps(body)) if parsed else body


def whole_us(size: int, messages: int, *, named: bool, parsed: bool) -> list[float]:
    """CPU time of all that the SDK does for each turn after the first, microseconds."""
    observer, client, found = Observer("s" if named else None, Guard()), Client(), []
    for body in bodies(size, messages, parsed=parsed):
        options, answer = Options(body), Answer()
        began = time.thread_time_ns()
        call = observer.begin(client, options, stream=False, stream_cls=None)
        observer.answered(call, answer)
        assert call.watch is not None
        call.watch.observe({"usage": USAGE})
        call.ended()
        found.append((time.thread_time_ns() - began) / 1000)
    report = observer.books.report()
    assert (report.turns_measured, report.internal_errors) == (TURNS + 1, 0)
    return found[1:]


def costs_us(size: int, messages: int, *, named: bool, parsed: bool, mode: str = "warn") -> list[float]:
    """CPU time of the guard for each turn after the first, microseconds."""
    books, found = Books(Guard(mode)), []
    for body in bodies(size, messages, parsed=parsed):
        turn = Turn(session="s" if named else None, streamed=False, lineage="s")
        began = time.thread_time_ns()
        if not named:
            conversation_ = books.conversation(turn, body)
            assert conversation_ is not None
            turn.session = turn.lineage = conversation_.key
        books.check(turn, body)
        found.append((time.thread_time_ns() - began) / 1000)
    return found[1:]


def memory_share(size: int, messages: int, *, parsed: bool) -> float:
    """Memory that the guard holds after a session, over the bytes of its conversation.

    Only memory that was allocated here and below is counted, since other threads of this process allocate memory, too.
    """
    books, sent = Books(Guard()), conversation(size, messages)
    tracemalloc.start(_FRAMES)
    for turn_number in range(TURNS):
        sent = [*sent, {"role": "user", "content": f"go on {turn_number}"}]
        body: dict[str, Any] = {"model": "m", "tools": TOOLS, "messages": [dict(message) for message in sent]}
        body = json.loads(json.dumps(body)) if parsed else body
        books.check(Turn(session="s", streamed=False, lineage="s"), body)
    del body
    below = tracemalloc.Filter(True, __file__, all_frames=True)
    traces = tracemalloc.take_snapshot().filter_traces([below]).traces
    tracemalloc.stop()
    return sum(each.size for each in traces) / len(json.dumps(sent))


def import_ms() -> float:
    """Milliseconds of CPU time to import the SDK's client, beyond the import of openai; the least of five."""
    code = "import openai, time; t = time.process_time; a = t(); import warmroute; warmroute.OpenAI; print(t() - a)"
    with tempfile.TemporaryDirectory() as folder:  # with bytecode, as an installed package has
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        run = partial(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return min(float(run(env=environment).stdout) for _ in range(6)) * 1000


def main() -> None:
    """Print all figures."""
    print("size        strings  session  guard us  whole us")
    for size, messages in SIZES:
        for parsed in (False, True):
            for named in (True, False):
                alone, whole = (
                    min(least for _ in range(ROUNDS) for least in cost(size, messages, named=named, parsed=parsed))
                    for cost in (costs_us, whole_us)
                )
                strings, session = "parsed" if parsed else "shared", "named" if named else "derived"
                print(f"{size:>9,}   {strings:7}  {session:7} {alone:9.0f} {whole:9.0f}")
        off = min(costs_us(size, messages, named=True, parsed=False, mode="off"))
        print(f"{size:>9,}   guard off: {off:.0f} us")
        shares = [memory_share(size, messages, parsed=parsed) for parsed in (False, True)]
        print(f"{size:>9,}   memory over the conversation: shared {shares[0]:.2f}, parsed {shares[1]:.2f}")
    print(f"import beyond openai's: {import_ms():.0f} ms")


if __name__ == "__main__":
    main()
