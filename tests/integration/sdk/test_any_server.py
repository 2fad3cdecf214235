"""Against servers that are not warmroute: every call goes as plain openai's would."""

from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

import warmroute
from warmroute.contract.providers import PROVIDERS

pytestmark = pytest.mark.full

if TYPE_CHECKING:
    from tests.integration.sdk.conftest import Driver

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def streamed(driver: "Driver", client: Any, **options: Any) -> str:
    chunks = driver.read(driver.run(client.chat.completions.create(model="m", messages=HI, stream=True, **options)))
    return "".join(chunk.choices[0].delta.content for chunk in chunks)


@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_server_that_refuses_stream_options_is_asked_once(driver: "Driver", status: int) -> None:
    driver.server.kind = "openai"
    driver.server.refuses_stream_options = status
    assert streamed(driver, driver.client()) == "hello"
    asked = ["stream_options" in request.body for request in driver.server.posts]
    assert asked == [True, False]
    other = driver.client()
    assert streamed(driver, other) == "hello"
    assert len(driver.server.posts) == 3, "known in the whole process"
    report = other.cache.report()
    assert (report.turns, report.turns_measured, report.internal_errors) == (1, 0, 0)


def test_a_server_that_refuses_the_sessions_field_is_asked_once(driver: "Driver") -> None:
    driver.server.refuses_field = "prompt_cache_key"
    client = driver.client(session="s", backend="openai")
    driver.run(client.chat.completions.create(model="m", messages=HI))
    assert streamed(driver, client) == "hello"
    assert ["prompt_cache_key" in request.body for request in driver.server.posts] == [True, False, False]
    other = client.with_options(base_url=f"{driver.server.url}/other")
    assert [streamed(driver, other) for _ in range(2)] == ["hello"] * 2
    added = {"prompt_cache_key", "stream_options"}
    assert [added & request.body.keys() for request in driver.server.posts[3:]] == [added, set(), {"stream_options"}]
    assert client.cache.report().internal_errors == 0


def test_a_refusal_is_remembered_for_the_model_that_it_came_from(driver: "Driver") -> None:
    driver.server.refuses_stream_options = 400
    client = driver.client()
    assert streamed(driver, client) == "hello"
    driver.server.refuses_stream_options = 0
    driver.read(driver.run(client.chat.completions.create(model="other", messages=HI, stream=True)))
    assert "stream_options" in driver.server.last.body


def test_the_callers_own_error_is_raised_as_it_is_and_teaches_nothing(driver: "Driver") -> None:
    client = driver.client()
    driver.server.fails_with = 400
    with pytest.raises(openai.BadRequestError):
        streamed(driver, client)
    assert len(driver.server.posts) == 2
    driver.server.fails_with = 0
    assert streamed(driver, client) == "hello"
    assert client.cache.report().receipts == 1
    driver.server.fails_with = 400
    with pytest.raises(openai.BadRequestError):
        streamed(driver, client)
    assert len(driver.server.posts) == 4, "a server that took the option once is not asked again why"


@pytest.mark.parametrize("status", [401, 403, 429, 503])
def test_errors_that_have_nothing_to_do_with_us_are_not_repeated(driver: "Driver", status: int) -> None:
    driver.server.fails_with = status
    with pytest.raises(openai.APIStatusError):
        streamed(driver, driver.client())
    assert len(driver.server.posts) == 1


def test_calls_that_were_not_altered_are_not_repeated(driver: "Driver") -> None:
    driver.server.fails_with = 400
    client = driver.client()
    with pytest.raises(openai.BadRequestError):
        driver.run(client.chat.completions.create(model="m", messages=HI))
    with pytest.raises(openai.BadRequestError):
        streamed(driver, client, stream_options={"include_usage": True})
    assert len(driver.server.posts) == 2


@pytest.mark.parametrize("name", sorted(PROVIDERS.keys() - {"warmroute"}))
def test_another_vendor_gets_openais_call_its_signal_and_nothing_else(server: Any, name: str) -> None:
    provider = PROVIDERS[name]
    with openai.OpenAI(base_url=server.url, api_key="k") as plain:
        plain.chat.completions.create(model="m", messages=HI)  # type: ignore[arg-type]
    with warmroute.OpenAI(base_url=server.url, api_key="k", backend=name) as client:
        for _ in range(2):  # the second one knows what the first one's answer said of a home
            with warmroute.session("key", parent="parent", kind="title", agent="a"):
                client.chat.completions.create(model="m", messages=HI)  # type: ignore[arg-type]
    first, _, last = server.posts
    signal = {provider.header: "key", provider.parent_header: "parent"}
    assert {header: last.headers[header] for header in last.headers.keys() - first.headers.keys()} == {
        header: value for header, value in signal.items() if header
    }
    assert last.body == {**first.body, **({provider.field: "key"} if provider.field else {})}


@pytest.mark.parametrize("stream", [False, True])
def test_plain_usage_adds_up_without_cost_or_hit_ratio(driver: "Driver", stream: bool) -> None:
    driver.server.kind = "plain"
    client = driver.client()
    answer = driver.run(client.chat.completions.create(model="m", messages=HI, stream=stream))
    if stream:
        assert len(driver.read(answer)) == 2
    report = client.cache.report()
    assert (report.turns, report.turns_measured, report.receipts) == (1, 1, 0)
    assert (report.prompt_tokens, report.completion_tokens) == (100, 7)
    assert (report.cached_tokens, report.hit_ratio, report.cost_nanousd, report.cost_usd) == (None, None, None, None)
    assert (report.violations, report.receipts_pending) == ((), 0)
    assert "cached not reported" in str(report)
    assert "does not say how many" in client.cache.explain()
    assert warmroute.receipt_of(answer) is None


def test_a_server_without_usage_is_a_turn_without_numbers(driver: "Driver") -> None:
    driver.server.kind = "bare"
    client = driver.client()
    driver.run(client.chat.completions.create(model="m", messages=HI))
    assert streamed(driver, client) == "hello"
    report = client.cache.report()
    assert (report.turns, report.turns_measured, report.internal_errors) == (2, 0, 0)
    assert "its usage was not seen" in client.cache.explain()


@pytest.mark.parametrize("stream", [False, True])
def test_garbage_changes_nothing_for_the_caller(driver: "Driver", stream: bool) -> None:
    driver.server.kind = "garbage"
    client = driver.client(session="s")
    for _ in range(2):
        answer = driver.run(client.chat.completions.create(model="m", messages=HI, stream=stream))
        if stream:
            chunks = driver.read(answer)
            assert chunks[0].choices == "none"
            assert len(chunks) == 3
        else:
            assert answer.choices[0].message.content == "hello"
    assert "x-warmroute-home" not in driver.server.last.headers
    report = client.cache.report()
    assert (report.turns, report.prompt_tokens, report.cached_tokens, report.cost_nanousd) == (2, 0, None, None)
    assert "malformed" in report.violations[0]
    assert report.internal_errors == 0


def test_a_stream_that_breaks_raises_as_openais_does(driver: "Driver") -> None:
    driver.server.kind = "breaks"
    client = driver.client()
    stream = driver.run(client.chat.completions.create(model="m", messages=HI, stream=True))
    with pytest.raises(openai.APIError, match="the engine is gone"):
        driver.read(stream)
    report = client.cache.report()
    assert (report.turns, report.turns_measured, report.internal_errors) == (1, 0, 0)


def test_a_legacy_http_client_works_as_it_does_with_openai(driver: "Driver") -> None:
    http_client = httpx.Client() if driver.kind == "sync" else httpx.AsyncClient()
    client = driver.client(http_client=http_client, session="s")
    driver.run(client.chat.completions.create(model="m", messages=HI))
    assert streamed(driver, client) == "hello"
    assert driver.server.last.headers["x-warmroute-home"] == "east"
    assert client.cache.report().receipts == 2


STEPS = [
    "warmroute._observer.identity_of",
    "warmroute._observer.body_of",
    "warmroute._observer.stream_options_with_usage",
    "warmroute._observer.printable",
    "warmroute._observer.signal",
    "warmroute._guard.repaired",
    "warmroute._books.measure",
    "warmroute._books.outcome",
]


@pytest.mark.parametrize("step", STEPS)
def test_an_error_inside_the_sdk_is_counted_and_kept_from_the_call(
    driver: "Driver", step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("broken")

    client = driver.client(session="s")
    assert driver.run(client.chat.completions.create(model="m", messages=HI)).choices[0].message.content == "hello"
    monkeypatch.setattr(step, broken)
    assert driver.run(client.chat.completions.create(model="m", messages=HI)).choices[0].message.content == "hello"
    assert streamed(driver, client) == "hello"
    assert client.cache.report().internal_errors >= 1
    assert "errors inside the SDK" in str(client.cache.report())


def test_messages_that_no_server_would_take_reach_the_server_as_they_are(driver: "Driver") -> None:
    client = driver.client()
    odd: list[list[Any]] = [["text"], [{"role": "user", "content": 5}], [None], [{}]]
    for messages in odd:
        driver.run(client.chat.completions.create(model="m", messages=messages))
        assert driver.server.last.body["messages"] == messages


def test_a_body_of_the_callers_bytes_is_sent_as_it_is(driver: "Driver") -> None:
    kind: Any = openai.Stream if driver.kind == "sync" else openai.AsyncStream
    options: Any = {"cast_to": object, "stream": True, "stream_cls": kind[ChatCompletionChunk]}
    content = b'{"model": "m", "messages": [], "stream": true}'
    driver.read(driver.run(driver.client().post("/chat/completions", content=content, **options)))
    assert driver.server.last.body == {"model": "m", "messages": [], "stream": True}


def test_a_message_of_a_thread_is_no_turn(driver: "Driver") -> None:
    client = driver.client(session="s", backend="openai")
    driver.run(client.post("/threads/t/messages", body={"role": "user", "content": "hi"}, cast_to=object))
    assert driver.server.last.body == {"role": "user", "content": "hi"}
    assert client.cache.report().turns == 0


def test_a_turn_without_any_session_is_counted_in_the_totals(driver: "Driver") -> None:
    client = driver.client()
    driver.run(client.chat.completions.create(model="m", messages=[{"role": "system", "content": "only system"}]))
    assert "x-session-affinity" not in driver.server.last.headers
    report = client.cache.report()
    assert (report.turns, report.receipts, dict(report.by_session)) == (1, 1, {})
    assert "The last turn: " in client.cache.explain()
