"""Recorded sessions of coding agents find as much cached through Envoy and a picker as by the proxy."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.subjects.gateway import Envoy, Picker
from tests.subjects.processes import EngineProcess, ProxyProcess
from tests.subjects.stopped import Several
from warmroute_lab.recordings import RecordedSession, load_recordings

pytestmark = pytest.mark.timeout(180)
HARNESSES = ("aider", "codex", "mini-swe-agent", "opencode")
TURNS = 10


@contextlib.contextmanager
def fleet(folder: Path) -> Iterator[Sequence[EngineProcess]]:
    folder.mkdir()
    with Several([EngineProcess(folder, f"a{number}", "aggregated", speed=50.0) for number in range(3)]) as started:
        yield [engine.listening() for engine in started]


def played(client: httpx.Client, recordings: Sequence[RecordedSession]) -> tuple[int, int]:
    """Prompt tokens and cached tokens of all turns, the sessions turn by turn."""
    prompt = cached = 0
    for turn in range(TURNS):
        for recording in recordings:
            if turn >= len(recording.requests):
                continue
            request = recording.requests[turn]
            body = request.body | {"model": "kimi-k2.5", "max_tokens": 4, "stream": False}
            for name in ("stream_options", "max_completion_tokens"):
                body.pop(name, None)
            headers = {
                name: value
                for name, value in request.headers.items()
                if name.lower() not in {"authorization", "content-length", "host", "accept-encoding", "content-type"}
            }
            answer = client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            prompt += usage["prompt_tokens"]
            cached += (usage["prompt_tokens_details"] or {})["cached_tokens"]
    return prompt, cached


def through_envoy(folder: Path, engines: Sequence[EngineProcess], play: Callable[[httpx.Client], float]) -> float:
    with (
        Picker(folder / "picker" / "p", [engine.toml("east") for engine in engines]) as picker,
        Envoy(folder / "envoy", picker.url, [engine.url for engine in engines]) as envoy,
        envoy.client(picker.keys[0]) as client,
    ):
        return play(client)


def through_proxy(folder: Path, engines: Sequence[EngineProcess], play: Callable[[httpx.Client], float]) -> float:
    with (
        ProxyProcess(folder / "proxy" / "p", [engine.toml("east") for engine in engines]) as proxy,
        proxy.client() as client,
    ):
        return play(client)


def test_recorded_sessions_reach_the_hit_ratio_of_the_proxy(tmp_path: Path) -> None:
    recordings = load_recordings(HARNESSES)
    assert len(recordings) >= len(HARNESSES)

    def ratio(client: httpx.Client) -> float:
        prompt, cached = played(client, recordings)
        return cached / prompt

    with fleet(tmp_path / "one") as engines:
        by_proxy = through_proxy(tmp_path, engines, ratio)
    with fleet(tmp_path / "two") as engines:
        by_picker = through_envoy(tmp_path, engines, ratio)
    print(f"hit ratio: proxy {by_proxy:.4f}, picker {by_picker:.4f}")
    assert by_proxy > 0.5
    assert abs(by_picker - by_proxy) <= 0.005
