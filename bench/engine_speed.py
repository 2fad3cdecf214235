"""Measures the embedded (simulated) engine: start-up time, SSE chunks per second of one core, memory per stream.

Usage: python -m bench.engine_speed [streams]. Speed is counted in CPU seconds of the engine process, so that a busy
machine does not change it. The start-up time is the shortest of several.
"""

import asyncio
import json
import subprocess
import sys
import time

from bench.process import cpu, resident_kb

STARTS = 5
STREAMS = 200
TOKENS = 1000
IDLE_STREAMS = 2000


def start(*args: str) -> "tuple[subprocess.Popen[bytes], str, int]":
    """A running engine, its host and its port."""
    command = [sys.executable, "-m", "warmroute_lab.engine", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    host, port = json.loads(process.stdout.readline())["url"].removeprefix("http://").split(":")
    return process, host, int(port)


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.communicate()


def request(number: int, tokens: int) -> bytes:
    """A streamed chat of `tokens` tokens, as bytes to send."""
    message = {"role": "user", "content": f"stream {number}"}
    fields = {"messages": [message], "stream": True, "max_tokens": tokens, "ignore_eos": True}
    body = json.dumps(fields).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def read_stream(host: str, port: int, number: int, tokens: int) -> int:
    """The number of events of one stream."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request(number, tokens))
    events, tail = 0, b""
    while b"[DONE]" not in tail:
        piece = await reader.read(1 << 18)
        if not piece:
            raise ConnectionError("a stream was cut")
        events += piece.count(b"data: ")
        tail = (tail + piece)[-32:]
    writer.close()
    return events


async def chunks(host: str, port: int, streams: int) -> int:
    """The number of events of many streams that run at once."""
    return sum(await asyncio.gather(*(read_stream(host, port, i, TOKENS) for i in range(streams))))


async def hold(host: str, port: int, streams: int, pid: int) -> int:
    """The memory, in kB, of streams that have begun and then send nothing."""
    before_kb = resident_kb(pid)
    writers = []
    for number in range(streams):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(number, 50))
        writers.append((reader, writer))
    for reader, _ in writers:
        await reader.readuntil(b"data: ")
    held_kb = resident_kb(pid) - before_kb
    for _, writer in writers:
        writer.close()
    return held_kb


def main() -> None:
    """Measure and print."""
    streams = int(sys.argv[1]) if len(sys.argv) > 1 else STREAMS
    starts = []
    for _ in range(STARTS):
        began_s = time.perf_counter()
        process, _, _ = start()
        starts.append((time.perf_counter() - began_s, cpu(process.pid).total_s))
        stop(process)
    wall_s, used_s = (min(column) for column in zip(*starts, strict=True))
    print(f"start: {wall_s:.2f} s wall, {used_s:.2f} s CPU (best of {STARTS})")

    process, host, port = start("--speed", "1000", "--max-running-requests", str(streams), "--kv-tokens", "10000000")
    before_s = cpu(process.pid).total_s
    began_s = time.perf_counter()
    events = asyncio.run(chunks(host, port, streams))
    wall_s, used_s = time.perf_counter() - began_s, cpu(process.pid).total_s - before_s
    stop(process)
    print(f"chunks: {events} in {used_s:.2f} s CPU of the engine: {events / used_s:,.0f} a second of one core")
    print(f"        ({wall_s:.2f} s wall, with the reader on the same machine)")

    process, host, port = start(
        "--speed", "0.1", "--max-running-requests", str(IDLE_STREAMS), "--kv-tokens", "10000000"
    )
    held_kb = asyncio.run(hold(host, port, IDLE_STREAMS, process.pid))
    stop(process)
    print(f"memory: {held_kb / IDLE_STREAMS:.1f} kB for each of {IDLE_STREAMS} idle streams")


if __name__ == "__main__":
    main()
