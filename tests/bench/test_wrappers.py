"""The comparison of client libraries: ours is called for real, the table is made of what is measured."""

import sys
from pathlib import Path
from threading import Thread

import pytest
from bench.wrappers import Answers, measured_us, table
from tests.subjects.http_server import QuietServer

from bench import wrappers


@pytest.mark.parametrize("kind", ["openai", *wrappers.OF_OURS])
def test_a_library_is_called_and_its_processor_time_is_seen(kind: str) -> None:
    server = QuietServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        assert abs(measured_us(Path(sys.executable), kind, url, 10_000, 10, 2)) < 10_000_000
    finally:
        server.shutdown()
        server.server_close()


def test_a_library_that_fails_is_a_line() -> None:
    with pytest.raises(RuntimeError, match=r"warmroute, guard on: .*Connection error"):
        measured_us(Path(sys.executable), "warmroute, guard on", "http://127.0.0.1:1/v1", 10_000, 10, 1)


def test_each_library_has_a_row_with_its_version() -> None:
    text = table({kind: {size: 1234.5 for size, _ in wrappers.SIZES} for kind in ("warmroute, guard on", "litellm")})
    assert "| us of CPU a call | 10 KB | 100 KB | 1,000 KB |" in text
    assert "| warmroute, guard on | 1,234 | 1,234 | 1,234 |" in text
    assert "| litellm 1.106.2 |" in text
