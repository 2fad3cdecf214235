"""The log of ended requests on disk (`--request-log`), of an engine that is killed."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "rid": "told"}


def crash(engine: Any) -> None:
    """Have it die as its next answer ends: of a stream once all its events are out, of a whole answer just before."""
    assert engine.client.post("/engine/faults", json={"fault": "crash", "after_events": 1000}).status_code == 200


def logged(path: Path) -> list[tuple[str, int]]:
    """The ids of the requests in a log, and how many tokens they were answered with."""
    return [(entry["rid"], entry["completion_tokens"]) for entry in map(json.loads, path.read_text().splitlines())]


@pytest.mark.parametrize("kind", ["whole", "stream"])
def test_what_a_client_saw_the_end_of_is_in_the_log(start_engine: Any, tmp_path: Path, kind: str) -> None:
    log = tmp_path / "log.jsonl"
    engine = start_engine("--request-log", str(log))
    crash(engine)
    told = b""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        engine.client.stream("POST", "/v1/chat/completions", json=BODY | {"stream": kind == "stream"}) as response,
    ):
        for data in response.iter_raw():
            told += data
    assert told.endswith(b"data: [DONE]\n\n") == (kind == "stream")
    assert logged(log) == [("told", 3)]


def test_a_log_goes_on_after_a_kill(start_engine: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for rid in ("before", "after"):
        engine = start_engine("--request-log", str(log))
        assert engine.client.post("/v1/chat/completions", json=BODY | {"rid": rid}).status_code == 200
        engine.kill()
    assert logged(log) == [("before", 3), ("after", 3)]
