"""One `Idempotency-Key` a call: equal over its retries, the caller's own where he set one, counted once."""

from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from tests.integration.sdk.conftest import Driver

HI: Any = [{"role": "user", "content": "hi"}]
KEY = "idempotency-key"


def keys(driver: "Driver") -> list[str | None]:
    """The keys of all calls so far."""
    return [request.headers.get(KEY) for request in driver.server.posts]


def test_each_call_has_a_key_of_its_own(driver: "Driver") -> None:
    client = driver.client()
    for stream in (False, True):
        answer = driver.run(client.chat.completions.create(model="m", messages=HI, stream=stream))
        if stream:
            driver.read(answer)
    driver.run(client.with_options(timeout=9).completions.create(model="m", prompt="hi"))
    found = keys(driver)
    assert all(key and 16 <= len(key) <= 256 and key.isascii() and key.isprintable() for key in found)
    assert len(set(found)) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_retries_repeat_the_key_the_session_and_the_body(driver: "Driver", stream: bool) -> None:
    driver.server.fails_with = 503
    client = driver.client(max_retries=1, session="s")
    with pytest.raises(openai.InternalServerError):
        driver.run(client.chat.completions.create(model="m", messages=HI, stream=stream))
    first, second = driver.server.posts
    assert first.headers[KEY] == second.headers[KEY]
    assert first.headers["x-session-affinity"] == second.headers["x-session-affinity"] == "s"
    assert first.body == second.body
    assert (first.headers["x-stainless-retry-count"], second.headers["x-stainless-retry-count"]) == ("0", "1")
    assert client.cache.report().turns == 0


@pytest.mark.parametrize("where", ["call", "client", "http client"])
def test_a_key_of_the_callers_is_sent_as_it_is(driver: "Driver", where: str) -> None:
    mine = {"Idempotency-Key": "mine"}
    if where == "http client":
        kind = openai.DefaultHttpxClient if driver.kind == "sync" else openai.DefaultAsyncHttpxClient
        client = driver.client(http_client=kind(headers=mine))
    else:
        client = driver.client(**({"default_headers": mine} if where == "client" else {}))
    extra: dict[str, Any] = {"extra_headers": mine} if where == "call" else {}
    driver.run(client.chat.completions.create(model="m", messages=HI, **extra))
    assert keys(driver) == ["mine"]


def test_a_caller_who_takes_the_key_away_is_obeyed(driver: "Driver") -> None:
    gone = {"idempotency-key": openai.Omit()}
    driver.run(driver.client().chat.completions.create(model="m", messages=HI, extra_headers=gone))
    assert keys(driver) == [None]


def test_openais_own_option_is_the_key(driver: "Driver") -> None:
    body = {"model": "m", "messages": HI}
    client = driver.client()
    driver.run(client.post("/chat/completions", body=body, cast_to=object, options={"idempotency_key": "option"}))
    assert keys(driver) == ["option"]


def test_a_turn_that_is_read_twice_is_counted_once(driver: "Driver") -> None:
    client = driver.client()
    driver.server.receipt_id = "wr-" + "7" * 24
    mine = {"Idempotency-Key": "again"}
    for _ in range(3):
        driver.run(client.chat.completions.create(model="m", messages=HI, extra_headers=mine))
    report = client.cache.report()
    assert (report.turns, report.turns_measured, report.receipts, report.receipts_pending) == (1, 1, 1, 0)
    assert report.prompt_tokens == 100
    assert [totals.turns for totals in report.by_session.values()] == [1]
    assert report.violations == ()


def test_a_stream_that_was_left_and_read_again_is_counted_once(driver: "Driver") -> None:
    client = driver.client()
    driver.server.receipt_id = "wr-" + "8" * 24
    left = driver.run(client.chat.completions.create(model="m", messages=HI, stream=True))
    assert client.cache.report().receipts_pending == 1
    driver.run(left.close())
    driver.read(driver.run(client.chat.completions.create(model="m", messages=HI, stream=True)))
    report = client.cache.report()
    assert (report.turns, report.receipts, report.receipts_pending) == (1, 1, 0)
