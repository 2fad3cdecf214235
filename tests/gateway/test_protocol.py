"""The endpoint picker protocol (proposal 004 of the inference extension), seen through a real Envoy."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.gateway import Envoy, Picker, ext_proc, fails_open, route
from tests.subjects.ports import free_port
from tests.subjects.processes import EngineProcess, chat, events, until
from tests.subjects.scripted import ROLE, Handler, ScriptedEngine, delta, whole
from tests.subjects.stopped import Several

CHAT = "/v1/chat/completions"
CACHED = {"cached_tokens": 64}
USAGE = {"prompt_tokens": 400, "completion_tokens": 2, "total_tokens": 402, "prompt_tokens_details": CACHED}
Change = Callable[[dict[str, Any]], None]


def answers(handler: Handler) -> None:
    """An engine that answers at once, in the way that it is asked."""
    if b'"stream":true' in handler.engine.bodies[-1]:
        last = {"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
        handler.stream(ROLE, delta("a"), delta("b"), delta(finish="stop"), last, "[DONE]")
    else:
        handler.reply(200, whole(USAGE))


def held(gate: threading.Event) -> Callable[[Handler], None]:
    """An engine that answers once the gate is open."""

    def script(handler: Handler) -> None:
        gate.wait(seconds(30))
        answers(handler)

    return script


class Scene:
    """Envoy, the picker and scripted engines."""

    def __init__(self, envoy: Envoy, picker: Picker, engines: Sequence[ScriptedEngine]) -> None:
        self.envoy = envoy
        self.picker = picker
        self.engines = engines

    def post(self, body: dict[str, Any], session: str = "s", **headers: str) -> Any:
        with self.envoy.client(self.picker.keys[0]) as client:
            return client.post(CHAT, json=body, headers={"x-session-affinity": session, **headers})

    @contextlib.contextmanager
    def sent(
        self, body: bytes, part: int | None = None, *, lines: Sequence[str] = (), tenant: int = 0
    ) -> Iterator[socket.socket]:
        """A request whose answer is not read yet; `part`: only so many bytes of its body are sent."""
        head = [f"POST {CHAT} HTTP/1.1", "host: x", f"authorization: Bearer {self.picker.keys[tenant]}", *lines]
        with socket.create_connection(("127.0.0.1", self.envoy.port), timeout=seconds(20)) as client:
            client.sendall("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body[:part])
            yield client

    def highest_mib(self) -> float:
        """The most memory that the picker has had."""
        assert self.picker.child is not None
        lines = Path(f"/proc/{self.picker.child.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


@contextlib.contextmanager
def scene(
    folder: Path,
    change: Change | None = None,
    *,
    engines: int = 2,
    of_engine: str | Sequence[str] = "",
    make: type[Picker] = Picker,
    port: int = 0,
    **of_picker: Any,
) -> Iterator[Scene]:
    """`port`: of the picker, where it is started again at the same one; 0: the system assigns it."""
    lines = [of_engine] * engines if isinstance(of_engine, str) else of_engine
    with contextlib.ExitStack() as stack:
        scripted = stack.enter_context(Several(ScriptedEngine(f"s{number}", answers) for number in range(engines)))
        tables = [f"{engine.toml()}\n{more}" for engine, more in zip(scripted, lines, strict=True)]
        picker = make(folder / "p", tables, **of_picker)
        stack.callback(picker.stop)
        picker.start(port)
        urls = [engine.url for engine in scripted]
        yield Scene(stack.enter_context(Envoy(folder / "envoy", picker.url, urls, change)), picker, scripted)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("usual")) as found:
        yield found


def hinted(addresses: list[str]) -> Change:
    """Envoy names the addresses that may be picked."""

    def change(config: dict[str, Any]) -> None:
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        kind = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config"
        hint = {"x-gateway-destination-endpoint-subset": addresses}
        entry = {"metadata_namespace": "envoy.lb.subset_hint", "value": hint}
        settings = {"name": "hint", "typed_config": {"@type": kind, "metadata": [entry]}}
        manager["http_filters"].insert(0, settings)

    return change


def test_the_engine_gets_what_the_proxy_would_send_it_and_nothing_of_the_client_s(usual: Scene) -> None:
    given = usual.post(chat("x", user="u"), "clean", **{"x-secret": "s", "x-request-id": "r-1"})
    assert given.status_code == 200, given.text
    engine = next(each for each in usual.engines if each.heads)
    head, sent = engine.heads[-1], engine.sent()
    assert {"authorization", "x-secret", "x-session-affinity", "cookie"}.isdisjoint(head)
    assert head["x-request-id"] == "r-1"
    assert head["content-type"] == "application/json"
    assert sent["rid"]
    assert sent["cache_salt"]
    assert given.json()["usage"]["warmroute"]["id"] == given.headers["x-warmroute-receipt"]
    assert json.loads(usual.picker.row(given.headers["x-warmroute-receipt"])["rids"]) == [sent["rid"]]


def test_a_session_goes_where_its_prompt_is_cached(usual: Scene) -> None:
    for engine in usual.engines:
        engine.bodies.clear()
    for turn in range(1, 5):
        assert usual.post(chat("home", turns=turn), "home").status_code == 200
    assert sorted(len(engine.bodies) for engine in usual.engines) == [0, 4]


@pytest.mark.parametrize("addresses", [[], ["10.9.9.9:1"]], ids=["empty", "of no engine"])
def test_an_empty_subset_is_a_503(usual: Scene, addresses: list[str]) -> None:
    with Also(usual, hinted(addresses)) as envoy, envoy.client(usual.picker.keys[0]) as client:
        given = client.post(CHAT, json=chat())
    assert given.status_code == 503
    assert given.json()["error"]["code"] == "no_worker"
    assert given.json()["error"]["message"] == "the subset has no eligible engine"


class Also(Envoy):
    """Another Envoy before the same picker."""

    def __init__(self, it: Scene, change: Change) -> None:
        folder = it.envoy.log.parent / f"also{free_port()}"
        super().__init__(folder, it.picker.url, [engine.url for engine in it.engines], change)


def test_load_that_is_shed_is_a_429_with_the_time_to_wait(tmp_path: Path) -> None:
    gate = threading.Event()
    with scene(tmp_path, engines=1, of_engine="max_running = 1", limits="queue_requests = 0") as it:
        it.engines[0].script = held(gate)
        running = threading.Thread(target=it.post, args=(chat("first"),))
        running.start()
        until(lambda: it.engines[0].bodies, "the first runs")
        given = it.post(chat("second"))
        gate.set()
        running.join()
    assert given.status_code == 429
    assert given.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(given.headers["retry-after"]) >= 1


def test_a_wait_in_the_queue_is_longer_than_message_timeout(tmp_path: Path) -> None:
    gate = threading.Event()

    def short(config: dict[str, Any]) -> None:
        ext_proc(config)["message_timeout"] = "0.2s"

    with scene(tmp_path, short, engines=1, of_engine="max_running = 1") as it:
        it.engines[0].script = held(gate)
        given: list[Any] = []
        both = [threading.Thread(target=lambda n=n: given.append(it.post(chat(str(n)), str(n)))) for n in range(2)]
        for thread in both:
            thread.start()
        with it.picker.admin() as admin:
            until(lambda: admin.get("/admin/admission").json()["queue"]["oldest_s"] > 0.6, "one waits for long")
        gate.set()
        for thread in both:
            thread.join()
    assert [each.status_code for each in given] == [200, 200]


def test_where_the_picked_engine_breaks_off_the_next_one_answers_and_has_the_row(tmp_path: Path) -> None:
    def retried(config: dict[str, Any]) -> None:
        route(config)["route"]["retry_policy"]["retry_on"] = "connect-failure,reset"

    with scene(tmp_path, retried) as it:
        assert it.post(chat("t", turns=1), "t").status_code == 200
        home = next(engine for engine in it.engines if engine.bodies)
        other = next(engine for engine in it.engines if engine is not home)
        home.script = Handler.cut
        given = it.post(chat("t", turns=2), "t")
        assert given.status_code == 200, given.text
        receipt = given.json()["usage"]["warmroute"]
        assert (len(home.bodies), len(other.bodies)) == (2, 1)
        row = it.picker.row(receipt["id"])
        assert row["outcome"] == "completed"
        assert other.name in json.dumps(json.loads(row["workers"])[-1])
        home.script = answers
        # What the other one has computed is known there: the next turn may stay.
        assert it.post(chat("t", turns=3), "t").status_code == 200
        assert len(other.bodies) == 2


def test_an_engine_that_nobody_reaches_is_a_502_and_charged_nothing(tmp_path: Path) -> None:
    with scene(tmp_path, engines=1) as it:
        assert it.post(chat("t")).status_code == 200
        it.engines[0].script = Handler.cut
        given = it.post(chat("t", turns=2))
    assert given.status_code == 502
    assert given.json()["error"]["code"] == "engine_error"
    assert it.picker.row(given.headers["x-warmroute-receipt"])["price_nanousd"] == 0


@pytest.mark.parametrize(("status", "expected"), [(400, 400), (500, 502), (503, 503)])
def test_an_error_of_an_engine_reaches_the_client_as_the_proxy_would_give_it(
    tmp_path: Path, status: int, expected: int
) -> None:
    def change(config: dict[str, Any]) -> None:
        del route(config)["route"]["retry_policy"]

    with scene(tmp_path, change, engines=1) as it:
        it.engines[0].script = lambda handler: handler.reply(status, b'{"error":{"message":"no","code":"c"}}')
        given = it.post(chat(stream=True))
    assert given.status_code == expected
    assert "message" in given.json()["error"]


def test_health_is_told_for_each_of_the_three_services(tmp_path: Path) -> None:
    with scene(tmp_path, engines=1) as it:
        names = ("liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "")
        assert [it.picker.health(name) for name in names] == [1, 1, 1, 1]
        assert it.picker.health("other") == -1


def test_a_picker_without_engines_refuses_requests_itself_where_envoy_fails_open(tmp_path: Path) -> None:
    with scene(tmp_path, fails_open, engines=1) as it:
        it.engines[0].dead = True
        it.engines[0].ready = b"no"
        until(lambda: not it.picker.is_ready(), "it knows of no engine that is up")
        it.envoy.checks_health_again()
        given = it.post(chat("a"))
        assert (given.status_code, given.json()["error"]["code"]) == (503, "no_worker")
        assert not it.engines[0].bodies


def test_where_the_picker_is_gone_an_envoy_that_fails_open_goes_on_without_it(tmp_path: Path) -> None:
    with scene(tmp_path, fails_open) as it:
        assert "x-warmroute-receipt" in it.post(chat("a")).headers
        it.picker.kill()
        until(lambda: it.envoy.stat("cluster.warmroute.membership_healthy") == 0, "Envoy has noticed")
        for _ in range(4):
            given = it.post(chat("a"))
            assert given.status_code == 200, given.text
            assert "x-warmroute-receipt" not in given.headers
        assert all(engine.bodies for engine in it.engines)  # in turn
        for engine in it.engines:
            engine.bodies.clear()
        wish = {"x-gateway-destination-endpoint": it.engines[0].url.removeprefix("http://")}
        assert [it.post(chat("a"), **wish).status_code for _ in range(4)] == [200] * 4
        assert it.engines[1].bodies  # no client chooses


def test_as_the_page_has_it_envoy_fails_closed(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.picker.kill()
        given = it.post(chat("a"))
        assert given.status_code == 500
        assert not any(engine.bodies for engine in it.engines)


def buffered(config: dict[str, Any]) -> None:
    settings = ext_proc(config)
    settings["processing_mode"] |= {"request_body_mode": "BUFFERED", "request_trailer_mode": "SKIP"}
    settings["max_message_timeout"] = "600s"


def test_a_buffered_body_is_taken_up_to_envoy_s_limit(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        buffered(config)
        config["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = 262_144

    with scene(tmp_path, change) as it:
        given = it.post(chat("w " * 30_000))
        assert given.status_code == 200, given.text
        assert given.json()["usage"]["warmroute"]["id"]
        sent = next(engine for engine in it.engines if engine.bodies)
        assert "w w w" in sent.sent()["messages"][-1]["content"]
        received = it.envoy.stat("ext_proc.stream_msgs_received")
        text = json.dumps(chat("w " * 300_000)).encode()
        with it.sent(text, part=0) as client:
            until(lambda: it.envoy.stat("ext_proc.stream_msgs_received") > received, "the picker has answered its head")
            with contextlib.suppress(OSError):  # Envoy closes it before all was sent
                client.sendall(text)
            assert client.recv(100).startswith(b"HTTP/1.1 413 ")
        assert it.post(chat("w")).status_code == 200


@pytest.mark.parametrize("size", [200_000, 1_500_000, 4_000_000])
def test_a_streamed_body_of_any_size_passes(usual: Scene, size: int) -> None:
    given = usual.post(chat("w " * (size // 2)), f"large-{size}")
    assert given.status_code == 200, given.text
    assert max(len(body) for engine in usual.engines for body in engine.bodies) > size


def test_a_body_beyond_the_limit_is_a_413(tmp_path: Path) -> None:
    with scene(tmp_path, limits="body_bytes = 100000") as it:
        assert it.post(chat("w " * 100_000)).status_code == 413
        assert it.post(chat("w")).status_code == 200


def off(mode: str) -> Change:
    def change(config: dict[str, Any]) -> None:
        ext_proc(config)["processing_mode"] |= {
            "response_header_mode": mode,
            "response_body_mode": "NONE",
            "response_trailer_mode": "SKIP",
        }

    return change


@pytest.mark.parametrize("mode", ["SEND", "SKIP"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_where_answers_are_not_read_they_pass_and_rows_have_no_tokens(tmp_path: Path, mode: str, stream: bool) -> None:
    with scene(tmp_path, off(mode)) as it:
        given = it.post(chat("a", stream=stream))
        assert given.status_code == 200, given.text
        assert ("x-warmroute-receipt" in given.headers) == (mode == "SEND")
        assert "warmroute" not in given.text
        row = it.picker.rows(1)[0]
        assert (row["outcome"], row["prompt_tokens"], row["price_nanousd"]) == ("completed", 0, 0)
        receipt = json.loads(row["usage"])["warmroute"]
        assert {"prompt_tokens", "cached_tokens", "completion_tokens"} <= set(receipt["estimated"]), row
        assert it.post(chat("a", turns=2, stream=stream)).status_code == 200
        assert sorted(len(engine.bodies) for engine in it.engines) == [0, 2]


@pytest.mark.parametrize("mode", ["SEND", "SKIP"])
def test_where_answers_are_not_read_what_needs_them_is_refused_by_name(tmp_path: Path, mode: str) -> None:
    body = {"model": "claude-x", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
    with scene(tmp_path, off(mode)) as it, it.envoy.client(it.picker.keys[0]) as client:
        given = client.post("/v1/messages", json=body)
        assert (given.status_code, given.json()["type"]) == (500, "error")
        assert "response_body_mode" in given.json()["error"]["message"]
        given = it.post(chat(), **{"idempotency-key": "k"})
        assert (given.status_code, given.json()["error"]["code"]) == (500, "gateway_config")
        assert "Idempotency-Key" in given.json()["error"]["message"]
    assert not any(engine.bodies for engine in it.engines)


@pytest.mark.parametrize(("status", "outcome"), [(500, "engine_error"), (400, "refused")])
def test_where_answers_are_not_read_an_engine_s_error_is_one_in_the_row_and_is_its_own(
    tmp_path: Path, status: int, outcome: str
) -> None:
    with scene(tmp_path, off("SEND"), engines=1) as it:
        it.engines[0].script = lambda handler: handler.reply(status, b'{"error":{"message":"no"}}')
        given = it.post(chat("e"))
        assert (given.status_code, given.json()["error"]["message"]) == (status, "no")
        row = it.picker.row(given.headers["x-warmroute-receipt"])
        assert (row["outcome"], row["price_nanousd"]) == (outcome, 0)
        it.engines[0].script = Handler.cut
        given = it.post(chat("c"))
        assert (given.status_code, given.json()["error"]["code"]) == (502, "engine_error")
        assert it.picker.row(given.headers["x-warmroute-receipt"])["outcome"] == "engine_error"
        metrics = it.picker.metrics()
    assert f'warmroute_requests_total{{route="{CHAT}",status="{status}"}} 1' in metrics
    assert f'warmroute_requests_total{{route="{CHAT}",status="502"}} 1' in metrics


def test_other_apis_are_translated_both_ways(usual: Scene) -> None:
    body = {"model": "claude-x", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
    with usual.envoy.client(usual.picker.keys[0]) as client:
        given = client.post("/v1/messages", json=body)
        assert given.status_code == 200, given.text
        assert given.json()["type"] == "message"
        assert given.json()["usage"]["warmroute"]["id"] == given.headers["x-warmroute-receipt"]
        streamed = client.post("/v1/messages", json=body | {"stream": True}).text
    assert [line for line in streamed.splitlines() if line.startswith("event: message_stop")]


def test_what_the_proxy_answers_itself_is_answered(usual: Scene) -> None:
    with usual.envoy.client(usual.picker.keys[0]) as client:
        assert {each["id"] for each in client.get("/v1/models").json()["data"]} >= {"kimi-k2.5"}
        assert client.get("/v1/usage").status_code == 200
        assert client.get("/v1/nothing").status_code == 404
        assert client.get(CHAT).status_code == 405
        assert client.post(CHAT, content=b"{").json()["error"]["code"] == "invalid_json"
        offered = client.get("/v1/responses", headers={"upgrade": "websocket", "connection": "upgrade"})
        assert offered.status_code == 403  # Envoy's own: the page's lets no upgrades pass
    with usual.envoy.client("sk-nobody") as client:
        given = client.post(CHAT, json=chat())
        assert (given.status_code, given.json()["error"]["code"]) == (401, "invalid_api_key")


def test_pages_of_the_allowed_origins_may_read_answers_which_no_cache_keeps(tmp_path: Path) -> None:
    page = {"origin": "https://app.example.com"}
    with (
        scene(tmp_path, extra=f'cors_origins = ["{page["origin"]}"]\n') as it,
        it.envoy.client(it.picker.keys[0]) as client,
    ):
        asks = {**page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        first = client.options(CHAT, headers=asks)
        whole = client.post(CHAT, json=chat(), headers=page)
        streamed = client.post(CHAT, json=chat(stream=True), headers=page)
        models = client.get("/v1/models", headers=page)
    for answer in (first, whole, streamed, models):
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page["origin"])
    assert first.headers["access-control-allow-headers"] == "authorization"
    assert models.headers["cache-control"] == "no-store"


def test_a_client_that_leaves_takes_its_answer_along_and_a_retry_with_its_key_is_served(tmp_path: Path) -> None:
    gate = threading.Event()
    with scene(tmp_path, engines=1) as it, contextlib.ExitStack() as stack:
        it.engines[0].script = held(gate)
        key = {"idempotency-key": "k"}
        text = json.dumps(chat("i"), separators=(",", ":")).encode()
        first = stack.enter_context(it.sent(text, lines=["idempotency-key: k"]))
        until(lambda: it.engines[0].bodies, "the first runs")
        joined: list[Any] = []
        second = threading.Thread(target=lambda: joined.append(it.post(chat("i"), **key)))
        second.start()
        with it.picker.admin() as admin:
            until(lambda: "warmroute_joins_total 1" in admin.get("/metrics").text, "another joins")
        first.close()
        second.join(seconds(20))
        assert (joined[0].status_code, joined[0].json()["error"]["code"]) == (503, "overloaded")
        assert joined[0].headers["retry-after"] == "1"
        gate.set()
        again = it.post(chat("i"), **key)
        assert again.status_code == 200, again.text
        assert it.picker.rows(2)[0]["outcome"] == "client_left"
        assert it.post(chat("i"), **key).content == again.content
        assert len(it.engines[0].bodies) == 2


def test_a_client_that_leaves_stops_its_engine_and_has_a_row(
    engines: list[EngineProcess], picker: Picker, envoy: Envoy
) -> None:
    body = chat("leave", stream=True, metadata={"script": json.dumps({"output_tokens": 20_000})})
    with envoy.client(picker.keys[0]) as client, client.stream("POST", CHAT, json=body) as streamed:
        next(streamed.iter_bytes())
    until(lambda: not any(engine.running() for engine in engines), "the engine has stopped")
    assert picker.rows(1)[0]["outcome"] == "client_left"


@pytest.mark.parametrize("mode", ["read", "SEND", "SKIP"])
def test_a_pair_is_driven_by_the_picker_the_prefill_leg_is_its_own(tmp_path: Path, mode: str) -> None:
    roles = {"p0": "prefill", "d0": "decode"}
    change = None if mode == "read" else off(mode)
    with (
        Several(EngineProcess(tmp_path, name, role) for name, role in roles.items()) as engines,
        Picker(tmp_path / "p", [engine.toml("east") for engine in engines]) as picker,
        Envoy(tmp_path / "envoy", picker.url, [engine.url for engine in engines], change) as envoy,
    ):
        with envoy.client(picker.keys[0]) as client:
            whole_answer = client.post(CHAT, json=chat("pair", max_tokens=4))
            streamed = client.post(CHAT, json=chat("pair", turns=2, max_tokens=4, stream=True))
        assert whole_answer.status_code == streamed.status_code == 200, whole_answer.text + streamed.text
        assert whole_answer.json()["usage"]["completion_tokens"] == 4
        assert len(events(streamed.text)) >= 4
        assert [len(engine.log()["finished"]) for engine in engines] == [2, 2]
        row = picker.rows(2)[0]
        assert {worker["role"] for worker in json.loads(row["workers"])} == {"prefill", "decode"}
