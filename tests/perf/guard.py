"""What the guard costs: CPU time of a call by size, memory beside the conversation, and the import.

    python -m tests.perf.guard

CPU time of the thread, since a busy machine makes walls longer; the median of the turns after the first, each with two
new messages. *shared*: the strings are those of the turn before, as in a program that appends to a list; *parsed*: all
are new, as below a transport.
"""

import json
import subprocess
import sys
import time
import tracemalloc
from statistics import median
from typing import Any, Final

from warmroute._books import Books
from warmroute._guard import Guard
from warmroute._turns import Turn

TURNS: Final = 30
SIZES: Final = ((100_000, 50), (1_000_000, 200))
"""Bytes of a conversation, and how many messages it has."""

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


def conversation(size: int, messages: int) -> list[dict[str, Any]]:
    """Messages of together about `size` bytes, with the tools."""
    text = "word " * ((size - len(json.dumps(TOOLS))) // messages // 5)
    roles = ("user", "assistant")
    found = [{"role": roles[at % 2], "content": f"{at} {text}"} for at in range(messages)]
    return [{"role": "system", "content": "You are brief."}, *found]


def costs_us(size: int, messages: int, *, named: bool, parsed: bool, mode: str = "warn") -> list[float]:
    """CPU time of each turn after the first, microseconds."""
    books, sent, found = Books(Guard(mode)), conversation(size, messages), []
    for turn_number in range(TURNS + 1):
        sent = [
            *sent,
            {"role": "assistant", "content": "ok " * 50},
            {"role": "user", "content": f"go on {turn_number}"},
        ]
        body: dict[str, Any] = {"model": "m", "tools": TOOLS, "messages": [dict(message) for message in sent]}
        body = json.loads(json.dumps(body)) if parsed else body
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
    """Memory that the guard holds after a session, over the bytes of its conversation."""
    books, sent = Books(Guard()), conversation(size, messages)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for turn_number in range(TURNS):
        sent = [*sent, {"role": "user", "content": f"go on {turn_number}"}]
        body: dict[str, Any] = {"model": "m", "tools": TOOLS, "messages": [dict(message) for message in sent]}
        body = json.loads(json.dumps(body)) if parsed else body
        books.check(Turn(session="s", streamed=False, lineage="s"), body)
    del body
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / len(json.dumps(sent))


def import_ms() -> float:
    """CPU time of importing the SDK's client beyond that of importing openai, milliseconds; the least of five."""
    code = "import openai, time; t = time.process_time; a = t(); import warmroute; warmroute.OpenAI; print(t() - a)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs) * 1000


def main() -> None:
    """Print all of it."""
    print("size        strings  session  guard   median us")
    for size, messages in SIZES:
        for parsed in (False, True):
            for named in (True, False):
                found = median(costs_us(size, messages, named=named, parsed=parsed))
                strings, session = "parsed" if parsed else "shared", "named" if named else "derived"
                print(f"{size:>9,}   {strings:7}  {session:7}  warn   {found:9.0f}")
        off = median(costs_us(size, messages, named=True, parsed=False, mode="off"))
        print(f"{size:>9,}   shared   named    off    {off:9.0f}")
        shares = [memory_share(size, messages, parsed=parsed) for parsed in (False, True)]
        print(f"{size:>9,}   memory over the conversation: shared {shares[0]:.2f}, parsed {shares[1]:.2f}")
    print(f"import beyond openai's: {import_ms():.0f} ms")


if __name__ == "__main__":
    main()
