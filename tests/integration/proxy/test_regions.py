"""Two regions: a session is served where it lives, its request crosses once, and a home that is down is no loss."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from tests.machine import configured, seconds
from tests.subjects.ports import free_port
from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat, events, until
from tests.subjects.scripted import Handler, Script, ScriptedEngine, delta, whole
from tests.subjects.small_fleet import two_regions
from tests.subjects.stopped import Several
from warmroute.contract import receipt as contract_receipt
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.regions.forward_claim import Forwards
from warmroute_proxy.server.regions.versions import ANNOUNCEMENTS, MAX_ANNOUNCED_BYTES

pytestmark = pytest.mark.full

GRACE = "shutdown_grace_s = 0.2"
WARNS = '\n[[budget]]\nname = "many"\ntenants = ["second"]\nrequests_per_minute = 1000\nwarn_share = 0.0'


ROAMER = {"x-session-affinity": "roamer", "x-warmroute-home": "west"}


class Regions(NamedTuple):
    """An engine and a proxy in each of two regions, that know each other's address."""

    east: ProxyProcess
    west: ProxyProcess
    engines: list[EngineProcess]


@contextlib.contextmanager
def made(folder: Path) -> Iterator[Regions]:
    of_east = {"limits": GRACE, "second": WARNS}
    with two_regions(folder, speed=2.0, port=free_port(), of_east=of_east) as found:
        yield Regions(*found)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    """Regions in which nothing breaks; each test has sessions of its own."""
    with made(tmp_path_factory.mktemp("sound")) as found:
        yield found


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    with made(tmp_path) as found:
        yield found


def ask(
    proxy: ProxyProcess, turns: int, home: str | None = None, stream: bool = False, session: str = "roamer"
) -> httpx.Response:
    headers = {"x-session-affinity": session} | ({"x-warmroute-home": home} if home else {})
    extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    with proxy.client() as client:
        return client.post("/v1/chat/completions", json=chat(session, turns=turns, **extra), headers=headers)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_session_that_roams_is_served_at_home_and_booked_there_once(sound: Regions, stream: bool) -> None:
    session = f"roams {stream}"
    first = ask(sound.west, 1, stream=stream, session=session)
    home = first.headers["x-warmroute-home"]
    assert home == "west"
    second = ask(sound.east, 2, home=home, stream=stream, session=session)
    third = ask(sound.east, 3, stream=stream, session=session)  # the hint is remembered
    for answer in (second, third):
        usage = events(answer.text)[-1]["usage"] if stream else answer.json()["usage"]
        assert contract_receipt.check(usage) == []
        assert usage["warmroute"]["region"] == answer.headers["x-warmroute-home"] == "west"
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.75 * usage["prompt_tokens"]
        assert usage["warmroute"]["id"] == answer.headers["x-warmroute-receipt"]
    ids = [answer.headers["x-warmroute-receipt"] for answer in (first, second, third)]
    hashed = sound.west.row(ids[-1])["session"]
    rows = [row for row in sound.west.rows() if row["session"] == hashed]
    assert [(row["id"], row["forwarded_from"]) for row in rows] == list(zip(ids, (None, "east", "east"), strict=True))
    assert not [row for row in sound.east.rows() if row["session"] == hashed]


def test_a_body_of_many_small_values_is_served_at_home(sound: Regions) -> None:
    """Another process reads it there, because that would take too long in the event loop."""
    body = chat("many", max_tokens=2)
    body["messages"][1]["content"] = [{"type": "text", "text": "a"} for _ in range(6_000)]
    with sound.east.client() as client:
        headers = {"x-session-affinity": "many", "x-warmroute-home": "west"}
        answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["warmroute"]["region"] == "west"


def test_the_receipt_of_a_forwarded_turn_is_had_where_it_was_asked(sound: Regions) -> None:
    ask(sound.west, 1)
    with sound.east.client() as mine, sound.east.client(tenant=1) as other:
        answer = mine.post("/v1/chat/completions", json=chat("roamer", turns=2, stream=True), headers=ROAMER)
        path = f"/v1/usage/receipts/{answer.headers['x-warmroute-receipt']}"
        assert mine.get(path).json()["usage"]["warmroute"]["region"] == "west"
        assert other.get(path).status_code == 404
        assert mine.get("/v1/usage/receipts/wr-000000000000000000000000").status_code == 404


@pytest.mark.parametrize("hint", ["nowhere", "east west", "x" * 500])
def test_a_hint_that_names_no_region_is_ignored_and_replaced(sound: Regions, hint: str) -> None:
    answer = ask(sound.east, 1, home=hint, session="hinted")
    assert answer.headers["x-warmroute-home"] == "east"


def test_a_home_that_is_down_is_replaced_by_serving_here_and_what_it_alone_holds_is_elsewhere(regions: Regions) -> None:
    ask(regions.west, 1)
    assert ask(regions.east, 2, home="west").json()["usage"]["warmroute"]["region"] == "west"
    regions.west.kill()
    answers = [ask(regions.east, turns, home="west") for turns in (3, 4)]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.json()["usage"]["warmroute"]["region"] == answer.headers["x-warmroute-home"] == "east"
    assert [row["forwarded_from"] for row in regions.east.rows(expected=2)] == [None, None]
    usage = answers[0].json()["usage"]
    receipt = usage["warmroute"]
    assert contract_receipt.check(usage) == []
    assert receipt["elsewhere_region"] == "west"
    assert receipt["loss"]["elsewhere"] > 0.5 * usage["prompt_tokens"]
    assert "cold" not in receipt["loss"]


@pytest.mark.real_deadlines("peers")
def test_a_home_that_hangs_is_replaced_by_serving_here(regions: Regions) -> None:
    """Frozen with a turn under way: what it computed in vain is not charged, and the two rows have ids of their own."""
    ask(regions.west, 1)
    assert regions.west.child is not None
    os.kill(regions.west.child.pid, signal.SIGSTOP)
    try:
        answer = ask(regions.east, 2, home="west")
        assert answer.json()["usage"]["warmroute"]["region"] == "east"
    finally:
        os.kill(regions.west.child.pid, signal.SIGCONT)
    rows = [*regions.east.rows(expected=1), *regions.west.rows(expected=1)]
    assert len({row["id"] for row in rows}) == len(rows)
    in_vain = [(row["outcome"], row["price_nanousd"]) for row in rows if row["forwarded_from"]]
    assert in_vain in ([], [("cut_off", 0)])


def test_a_home_that_does_not_trust_us_is_replaced_by_serving_here_and_a_warning_counted_once(regions: Regions) -> None:
    """West is up for east, and refuses all that east forwards."""
    regions.west.stop()
    (regions.west.folder.parent / "secret").write_text("f" * 32)
    regions.west.start(port=int(regions.west.url.rsplit(":", 1)[1]))
    regions.east.sees("west")
    with regions.east.client(tenant=1) as client:
        answer = client.post("/v1/chat/completions", json=chat("roamer"), headers=ROAMER)
    assert answer.status_code == 200
    assert answer.headers["x-warmroute-home"] == "east"
    assert answer.headers["x-warmroute-budget"].startswith("many; requests_per_minute; ")
    page = regions.east.metrics()
    assert "warmroute_forward_failures_total 1\n" in page
    assert 'warmroute_budget_warnings_total{budget="many",limit="requests_per_minute"} 1\n' in page


def test_a_home_without_engines_is_replaced_by_serving_here(regions: Regions) -> None:
    ask(regions.west, 1)
    regions.engines[1].stop()
    until(lambda: not regions.west.is_ready(), "west knows that its engine is gone")
    answer = ask(regions.east, 2, home="west")
    assert answer.json()["usage"]["warmroute"]["region"] == "east"
    assert regions.west.rows(expected=1)[0]["turn"] == 1
    assert len(regions.west.rows()) == 1


TURN = RegionalTurn(1, 7, None, 3, 0, SettledTurn((), "west", 900, 300, 1, 0, 1, 0, 5))
ANNOUNCED = msgspec.msgpack.encode([TURN])


@pytest.mark.parametrize(
    ("tenant", "path", "body", "status"),
    [
        ("", ANNOUNCEMENTS, ANNOUNCED, 200),
        ("first", ANNOUNCEMENTS, ANNOUNCED, 401),  # the token of a forwarded request
        ("", "/v1/chat/completions", ANNOUNCED, 401),
        ("", ANNOUNCEMENTS, b"\x91\x00", 400),
        ("", ANNOUNCEMENTS, b"\xff" * (MAX_ANNOUNCED_BYTES + 1), 413),
        (None, ANNOUNCEMENTS, ANNOUNCED, 404),  # a client's own, with its key
    ],
    ids=["sound", "of a tenant", "for another path", "garbage", "too large", "a client"],
)
def test_only_a_proxy_of_the_fleet_announces(
    sound: Regions, tenant: str | None, path: str, body: bytes, status: int
) -> None:
    secrets = Secrets((sound.east.folder.parent / "secret").read_bytes())
    forwards = Forwards(secrets, "west", time.time, token_hex)
    digest = hashlib.sha256(body).hexdigest()
    headers = {"x-warmroute-forward": forwards.sign(tenant or "", tenant or "", path, "east", digest, 10.0)}
    if tenant is None:
        headers["authorization"] = f"Bearer {sound.east.keys[0]}"
    with httpx.Client(base_url=sound.east.url, verify=PLAIN, timeout=seconds(10)) as client:
        answers = [client.post(ANNOUNCEMENTS, content=body, headers=headers).status_code for _ in range(2)]
        assert answers == [status, 401 if status in {200, 400} else status]  # a token is good for once
        assert client.post(ANNOUNCEMENTS, content=body).status_code == 404
        assert client.get("/ready").status_code == 200


def test_a_conversation_without_a_key_is_one_session_in_both_regions(regions: Regions) -> None:
    with regions.east.client() as client:

        def turn(turns: int) -> dict[str, Any]:
            body = chat("unnamed", turns=turns, max_tokens=2)
            answer = client.post("/v1/chat/completions", json=body, headers={"x-warmroute-home": "west"})
            return dict(answer.json()["usage"]["warmroute"])

        receipts = [turn(1), turn(2)]
        regions.west.stop()
        receipts.append(turn(3))
    assert [receipt["region"] for receipt in receipts] == ["west", "west", "east"]
    assert len({receipt["session"] for receipt in receipts}) == 1
    assert "prefix_changed" not in receipts[2]["loss"]


@pytest.mark.parametrize("begun", [True, False], ids=["within its answer", "before its answer"])
def test_a_client_that_leaves_is_noticed_in_the_other_region(sound: Regions, begun: bool) -> None:
    session, west = f"leaves {begun}", sound.west
    first = west.row(ask(west, 1, session=session).headers["x-warmroute-receipt"])
    left = west.metric("warmroute_client_left_total ")
    body = chat(session, turns=2, stream=begun, max_tokens=4000, ignore_eos=True)
    with sound.east.send(body, headers={**ROAMER, "x-session-affinity": session}) as sock:
        until(lambda: sound.engines[1].running() == 1, "it is served at home")
        if begun:
            assert sock.recv(1) == b"H"
            until(lambda: "warmroute_body_memory_bytes 0\n" in sound.east.metrics(), "its body is kept no longer")
    until(lambda: sound.engines[1].running() == 0, "the engine in the home region stops")
    (row,) = until(
        lambda: [row for row in west.rows() if row["session"] == first["session"] and row["id"] != first["id"]],
        "its row",
    )
    assert (row["outcome"], row["status"], row["forwarded_from"]) == ("client_left", 0, "east")
    assert row["price_nanousd"] > 0
    assert west.metric("warmroute_client_left_total ") == left + 1


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_proxy_that_goes_under_its_client_is_no_client_that_left(regions: Regions, how: str) -> None:
    """Its forwarded turn is booked and charged at home like one of its own that it breaks off."""
    ask(regions.west, 1)
    sock = regions.east.send(chat("roamer", turns=2, stream=True, max_tokens=4000, ignore_eos=True), headers=ROAMER)
    assert sock.recv(1) == b"H"
    until(lambda: regions.engines[1].running() == 1, "it is served at home")
    assert regions.east.child is not None
    os.kill(regions.east.child.pid, getattr(signal, how))
    seen = bytearray()
    while some := _read(sock):
        seen += some
    sock.close()
    assert b"[DONE]" not in seen
    assert (b'"code":"draining"' in seen) == (how == "SIGTERM")
    until(lambda: regions.engines[1].running() == 0, "the engine in the home region stops")
    row = regions.west.rows(expected=2)[-1]
    assert (row["outcome"], row["price_nanousd"], row["forwarded_from"]) == ("cut_off", 0, "east")
    assert "warmroute_client_left_total 1" not in regions.west.metrics()
    assert regions.east.rows() == []


def _read(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except ConnectionResetError:
        return b""


@contextlib.contextmanager
def scripted(folder: Path, script: Script, limits: str) -> Iterator[tuple[ProxyProcess, ProxyProcess, ScriptedEngine]]:
    """East with these limits, west, and the engine of west; each region has a scripted one."""
    with (
        Several([ScriptedEngine(name, script) for name in ("w0", "e0")]) as engines,
        ProxyProcess(folder, [engines[0].toml().replace('"east"', '"west"')], region="west") as west,
        ProxyProcess(folder, [engines[1].toml()], keys=west.keys, peer=("west", west.url), limits=limits) as east,
    ):
        yield east.sees("west"), west, engines[0]


def test_a_client_that_reads_slowly_is_no_home_that_says_nothing(tmp_path: Path) -> None:
    """The stream stands still while its client does not read; another one that does shows that the time is up."""
    parts, over = 1500, threading.Event()

    def script(handler: Handler) -> None:
        if json.loads(handler.engine.bodies[-1])["messages"][-1]["content"].startswith("silent"):
            handler.stream(delta("x"), end=False)
            over.wait(seconds(60))
        else:
            texts = [delta(f"{number:05d}" + "x" * 5000) for number in range(parts)]
            handler.stream(*texts, delta(finish="stop"), "[DONE]")

    with scripted(tmp_path, script, f"idle_timeout_s = {configured(5)}") as (east, _, engine):
        body = chat("roamer", turns=2, stream=True, prompt_cache_key="roamer")
        slow = east.send(body, headers={"x-warmroute-home": "west"})
        until(lambda: engine.bodies, "it is forwarded")
        status, _, text = answered(east.send(chat("silent", stream=True)))
        why = events(text)[-1]["error"]["message"]
        assert (status, "no token" in why or "silent for too long" in why) == (200, True), "its time is up"
        over.set()
        status, _, text = answered(slow)
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
        assert len(events(text)) == parts + 1


def test_an_answer_for_which_there_is_no_memory_is_not_charged(tmp_path: Path) -> None:
    """The home has charged it by then: the proxy where it came in refuses the client, and has the row voided."""
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    long_answer = whole(usage, padding="x" * 3_000_000)
    limits = "body_bytes = 65536\nbody_memory_bytes = 1048576"
    with scripted(tmp_path, lambda handler: handler.reply(200, long_answer), limits) as (east, west, _):
        assert ask(east, 1, home="west").status_code == 503
        rows = west.rows(expected=2)
        assert [row["forwarded_from"] for row in rows if not row["id"].endswith("-void")] == ["east"]
        assert sum(row["price_nanousd"] for row in rows) == 0
        assert east.rows() == []


def answered(sock: socket.socket) -> tuple[int, dict[str, str], str]:
    """What was sent with `ProxyProcess.send`, to its end, which may be an early one."""
    response = HTTPResponse(sock)
    try:
        response.begin()
        try:
            body = response.read()
        except IncompleteRead as error:
            body = error.partial
        return response.status, dict(response.getheaders()), body.decode()
    finally:
        response.close()
        sock.close()
