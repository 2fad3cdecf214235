"""A large body is read in another process: its request is served, refused, joined and forwarded like any other."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from bench.process import tree
from hypothesis import given
from hypothesis import strategies as st

from tests.subjects.processes import ProxyProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from tests.subjects.stopped import Several
from warmroute.contract import receipt
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES
from warmroute_proxy.server.intake.body import Body
from warmroute_proxy.server.intake.large_body import LargeBody, NamedSpan

pytestmark = pytest.mark.full

ANSWERS_WITH = {"prompt_tokens": 5, "completion_tokens": 1}
LARGE = "tell me about caf\u00e9s, " * (LARGE_BYTES // 20)


def answer(handler: Handler) -> None:
    handler.reply(200, whole(ANSWERS_WITH))


class East(NamedTuple):
    """A proxy that knows another region, and its engine."""

    proxy: ProxyProcess
    engine: ScriptedEngine


@pytest.fixture(scope="module")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[East]:
    folder = tmp_path_factory.mktemp("large") / "p"
    with Several([ScriptedEngine(f"{name}-e0", answer) for name in ("east", "west")]) as (engine, other):
        of_west = other.toml().replace('region = "east"', 'region = "west"')
        with (
            ProxyProcess(folder, [of_west], region="west") as west,
            ProxyProcess(folder, [engine.toml()], keys=west.keys, peer=("west", west.url)) as proxy,
        ):
            yield East(proxy.sees("west"), engine)


def ask(proxy: ProxyProcess, content: bytes, **headers: str) -> httpx.Response:
    with proxy.client() as client:
        headers = {"content-type": "application/json"} | headers
        return client.post("/v1/chat/completions", content=content, headers=headers)


def large(**fields: Any) -> bytes:
    return json.dumps(chat(LARGE, **fields), ensure_ascii=False).encode()


def reader_of(proxy: ProxyProcess) -> list[int]:
    """The processes that a proxy has started to read bodies."""
    assert proxy.child is not None
    found = []
    for pid in tree(proxy.child.pid)[1:]:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def shared_descriptors(proxy: ProxyProcess) -> int:
    """Those of bodies that a proxy shares with its reader: two of each until it is read, one from then on."""
    assert proxy.child is not None
    count = 0
    for link in Path(f"/proc/{proxy.child.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            count += "warmroute-body" in str(link.readlink())
    return count


def test_the_engine_gets_what_the_client_sent(east: East) -> None:
    sent = large(max_tokens=3, not_listed={"a": 1})
    assert len(sent) > LARGE_BYTES
    answered = ask(east.proxy, sent)
    assert answered.status_code == 200, answered.text
    usage = answered.json()["usage"]
    assert receipt.check(usage) == []
    assert usage["warmroute"]["dropped_fields"] == ["not_listed"]
    got = east.engine.sent()
    assert got.pop("cache_salt")
    assert {name: got.get(name) for name in chat(LARGE, max_tokens=3)} == chat(LARGE, max_tokens=3)
    assert "not_listed" not in got


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (large()[:-1], "invalid_json"),
        (large(model="no such model"), "model_not_found"),
        (large(temperature="hot"), "invalid_type"),
        (large(bootstrap_room=1), "forbidden_field"),
    ],
    ids=["json", "model", "type", "steering"],
)
def test_what_is_wrong_with_it_is_said(east: East, content: bytes, code: str) -> None:
    before = len(east.engine.bodies)
    answered = ask(east.proxy, content)
    assert 400 <= answered.status_code < 500
    assert answered.json()["error"]["code"] == code
    assert len(east.engine.bodies) == before


def test_a_route_that_takes_none_says_so(east: East) -> None:
    with east.proxy.client() as client:
        answered = client.request("GET", "/v1/models", content=large())
    assert (answered.status_code, answered.json()["error"]["code"]) == (413, "request_too_large")


def test_a_repeated_key_gets_the_first_answer(east: East) -> None:
    engine, key = east.engine, {"idempotency-key": "large-1"}
    before = len(engine.bodies)
    first = ask(east.proxy, large(), **key)
    again = ask(east.proxy, large(), **key)
    assert first.status_code == again.status_code == 200
    assert first.json()["usage"]["warmroute"]["id"] == again.json()["usage"]["warmroute"]["id"]
    assert len(engine.bodies) == before + 1


def test_it_crosses_to_the_home_of_its_session(east: East) -> None:
    home = {"x-session-affinity": "roams", "x-warmroute-home": "west"}
    alone = [{"role": "user", "content": "alone: " + LARGE}]  # no engine has a part of it
    content = json.dumps({"model": "kimi-k2.5", "messages": alone}).encode()
    answered = ask(east.proxy, content, **home)
    assert answered.status_code == 200, answered.text
    assert answered.json()["usage"]["warmroute"]["region"] == "west"


def test_a_reader_that_was_killed_is_started_again(east: East) -> None:
    assert ask(east.proxy, large()).status_code == 200
    (pid,) = reader_of(east.proxy)
    os.kill(pid, signal.SIGKILL)
    until(lambda: reader_of(east.proxy) == [], "the reader is gone")
    assert ask(east.proxy, large()).status_code == 200


def test_all_that_waited_for_a_killed_reader_are_read_again(east: East) -> None:
    assert ask(east.proxy, large()).status_code == 200
    (pid,) = reader_of(east.proxy)
    os.kill(pid, signal.SIGSTOP)
    before = shared_descriptors(east.proxy)
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(ask, east.proxy, large()) for _ in range(3)]
        until(lambda: shared_descriptors(east.proxy) == before + 6, "the bodies wait for the reader")
        os.kill(pid, signal.SIGKILL)
        assert [each.result().status_code for each in asked] == [200, 200, 200]


def test_no_reader_stays_behind_a_proxy(tmp_path: Path) -> None:
    with ScriptedEngine("e0", answer) as engine, ProxyProcess(tmp_path / "p", [engine.toml()]) as proxy:
        assert ask(proxy, large()).status_code == 200
        (pid,) = reader_of(proxy)
        proxy.kill()
        until(lambda: not Path(f"/proc/{pid}").exists(), "the reader has ended")


names = st.sampled_from(["a", "b", "a:b", "model", "caf\u00e9", 'quo"te'])
values = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))


@given(st.dictionaries(names, values), st.frozensets(names), st.sampled_from([b"", b'"x":1']))
def test_it_is_rewritten_like_a_small_one(members: dict[str, Any], drop: frozenset[str], add: bytes) -> None:
    raw = json.dumps(members, ensure_ascii=False).encode()
    small = Body(raw)
    spans = [NamedSpan(name, span.start, span.end) for name, span in small.spans.items()]
    large_body = LargeBody(memoryview(raw), spans)
    assert [large_body.value(name) for name in sorted(drop)] == [small.value(name) for name in sorted(drop)]
    parts = large_body.rewritten(drop, add)
    assert json.loads(b"".join(parts)) == json.loads(b"".join(small.rewritten(drop, add)))
